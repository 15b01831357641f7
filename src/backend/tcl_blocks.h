// Which nodes of a graph become one TCL block: one contraction with the vector steps after it, or
// one chain of vector steps. A block's values are f32 and it rounds once, at its end, so it ends
// wherever the graph rounds. The rules are in docs/decisions/013-tcl-blocks.md.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "backend/tcl_axes.h"

namespace npu::tcl {

// A tensor that is read: an input, or what an earlier block or view wrote.
struct Use {
  NodeId node = -1;
  Renaming renaming;  // of its axes, for this reader; empty = as they are
  bool operator==(const Use&) const = default;
};

struct Operand {
  enum class Kind { kRead, kStep, kConstant } kind = Kind::kRead;
  int index = 0;    // of the read or the step
  float value = 0;  // of the constant
  bool operator==(const Operand&) const = default;
};

struct Step {
  std::string op;  // "+", "exp", "max_f"
  std::vector<Operand> operands;
  Atoms reduced;  // axes summed away; then there is one operand
};

struct Block {
  NodeId result = -1;      // the node whose value it writes
  bool contracts = false;  // of the first two reads; its product counts as step 0
  NodeId contraction = -1;
  std::vector<Use> reads;  // the first holds all axes that the block walks over, unless:
  bool outer = false;      // the two reads have all axes between them, none has them alone
  std::vector<Step> steps;
  std::string kind() const;  // "EinsumByDpe", …
};

// A tensor made of parts of others without arithmetic: a concat, or one or more slices.
struct View {
  struct Cut {
    Atoms whole, piece;  // the axis that is cut, and what is left of it
    int64_t offset = 0;
  };
  NodeId result = -1;
  bool joins = false;  // concat, else slice
  std::vector<Use> parts;
  std::vector<Cut> cuts;      // slice: one after the other
  std::vector<Atoms> pieces;  // concat: of each part
  Atoms whole;                // concat: what they make
};

// In order of execution; exactly one of the two is set.
struct Item {
  bool is_view = false;
  Block block;
  View view;
  NodeId result() const { return is_view ? view.result : block.result; }
};

// Why this op or these types cannot be written; nothing when they can.
std::optional<std::string> unsupported_node(const Graph& graph, NodeId node);
// Why a value is nothing that lies in memory: a number, or a repeated tensor.
std::optional<std::string> not_a_tensor(const Graph& graph, NodeId id);
// The node whose tensor `id` is read from: reshapes, transposes and widening cost nothing.
NodeId storage_of(const Graph& graph, NodeId id);
bool rounds(const Graph& graph, NodeId id);      // its result is rounded to bf16
bool holds_bf16(const Graph& graph, NodeId id);  // whatever its type

Result<std::vector<Item>> form_blocks(const Graph& graph, const Axes& axes);

}  // namespace npu::tcl
