// The steps of one block as a chain: the vector engine wants each step to use the result just
// before it; earlier results and reads may be the other operand.
#pragma once

#include <functional>
#include <optional>
#include <set>

#include "backend/tcl_blocks.h"

namespace npu::tcl {

struct ChainRequest {
  const Graph* graph = nullptr;
  const Axes* axes = nullptr;
  NodeId result = -1;
  const std::vector<bool>* stored = nullptr;  // nodes that are read, not computed, here
  NodeId contraction = -1;                    // whose product is the first value, or -1
};

// What is computed in the block of `result`, and what is read.
struct Cluster {
  std::set<NodeId> inner;  // without the result itself
  std::vector<Use> reads;  // in order of first use
};
Cluster cluster_of(const ChainRequest& request);

// The reads and steps of the block that computes `result`; an Error says which rule cannot be kept.
// `blocking` is then the node that would have to be stored for it, or -1.
struct Chain {
  std::optional<Block> block;
  std::string problem;
  NodeId blocking = -1;
};
Chain make_chain(const ChainRequest& request);

}  // namespace npu::tcl
