// Orders of execution that partition() tries. Private to src/transform.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace npu {

// Nodes without operands (constant, iota) cost less to make again than to move: each part that
// reads one has its own copy.
inline bool is_repeated(const Graph& graph, NodeId id) {
  return !graph.node(id).is_input() && graph.node(id).inputs.empty();
}

// Topological orders of the nodes that partition() must place: all but inputs and repeated nodes
// (a repeated node that is an output of the graph is placed too). Deterministic; the order of ids
// comes first. The others bring producers nearer to their consumers.
std::vector<std::vector<NodeId>> candidate_orders(const Graph& graph);

}  // namespace npu
