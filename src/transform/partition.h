// Cutting a graph into parts that a fragile compiler can take. partition() only labels; split()
// cuts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace npu {

// 0 means unlimited.
struct PartLimits {
  int64_t contractions = 0;  // --max-mm
  int64_t nodes = 0;
  int64_t inputs = 0;
  int64_t outputs = 0;
  bool operator==(const PartLimits&) const = default;
};

// Part number of each node, by node id; -1 for inputs. Numbers rise along edges. Among cuts that
// respect the limits, the one that moves the fewest bytes between parts, each value counted when
// it is written and for each part that reads it (dynamic program over a few topological orders; of
// equal cuts the one with the fewest parts). Nodes without operands (constant, iota) never cross:
// split() repeats them in each part that reads them.
struct PartLabels {
  std::vector<int> part;
  int count = 0;
};
// An Error names the node that cannot fit any part (for example more inputs than allowed).
Result<PartLabels> partition(const Graph& graph, const PartLimits& limits);

// One part as a graph of its own. Inputs and outputs carry the names of the whole graph's values:
// graph inputs and outputs keep theirs, also where an output is read by a later part; other values
// that cross are "t<N>", or the next N that no input or output has.
struct Part {
  Graph graph;
};
// Parts in order of execution. Run in order they equal the whole graph bit for bit on cpu.
std::vector<Part> split(const Graph& graph, const PartLabels& labels);

// The part under canonical names ("i0".. in order of first use and "o0".., graph name "part"), with
// its nodes in depth-first order, so that parts of equal structure print equal text whatever their
// names and order; and the real name of each canonical input and output. Unused inputs fall away.
struct CanonicalPart {
  Graph graph;
  std::vector<std::string> input_names;   // real name of input i
  std::vector<std::string> output_names;  // real name of output i
};
CanonicalPart canonicalize(const Graph& part);

}  // namespace npu
