// How the tensors of a function lie in memory, and under which axis names each statement sees them.
#pragma once

#include <string>
#include <vector>

#include "backend/tcl_blocks.h"

namespace npu::tcl {

using Run = Atoms;  // atoms that lie side by side and go under one axis name

struct StoredTensor {
  std::string name;
  NodeId node = -1;
  DType dtype = DType::kF32;
  Atoms order;            // of its atoms in memory, outermost first
  std::vector<Run> axes;  // the same, as it is declared
  bool is_input = false;
};

struct TensorUse {
  size_t tensor = 0;
  Renaming renaming;
  std::vector<Run> axes;  // under which the statement reads it
};

struct Statement {
  enum class Kind { kBlock, kCopy, kSlice, kConcat } kind = Kind::kBlock;
  size_t result = 0;
  std::vector<TensorUse> uses;
  const Block* block = nullptr;
  Run whole;                // slice: the axis that is cut
  std::vector<Run> pieces;  // slice: what is left (one); concat: what is joined
  int64_t offset = 0;
};

struct FunctionLayout {
  std::vector<StoredTensor> tensors;  // used inputs first, in the graph's order
  std::vector<Statement> statements;
  std::vector<size_t> outputs;  // tensors, in the order of the graph's outputs
};

// Error: the node at which an axis occurs in no input, so that TCL cannot know its size.
Result<FunctionLayout> lay_out(const Graph& graph, const Axes& axes,
                               const std::vector<Item>& items);

}  // namespace npu::tcl
