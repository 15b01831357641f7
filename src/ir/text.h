// The textual form of a graph: what the cache hashes, tests compare and `npu-lora ir` reads.
//
//   graph layer_fwd
//   %0 = input "x" : f32[128,576]
//   %1 = input "w" : f32[1536,576]
//   %2 = matmul(%0, %1) {transpose_rhs=1} : f32[128,1536]
//   output "y" = %2
//
// Names of values are canonical (%0, %1, … in order), so equal graphs print equal text.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace npu {

using FindOp = std::function<const OpDef*(std::string_view)>;

std::string print_graph(const Graph& graph);
// The line of one node, without its end.
std::string print_node(const Graph& graph, NodeId id);

inline constexpr int64_t kMaxTextNodes = 1'000'000;

// Reads what print_graph writes, and what people write by hand: any %name, blank lines, comments
// from
// '#' to the end of the line. Nodes that no output needs are dropped. Errors are "NAME:LINE: what;
// got …". Text is untrusted: the types of all nodes are bounded (broken_type_bound) and at most
// kMaxTextNodes lines define values.
Result<Graph> parse_graph(std::string_view text, const FindOp& find_op,
                          std::string_view name = "graph");

}  // namespace npu
