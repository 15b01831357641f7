// Second part of planning: which nodes run together, and in what order.
#pragma once

#include <vector>

#include "backend/cpu_values.h"

namespace npu::cpu {

// The nodes of one step in order; a fused group of loops, or one product or kernel with its result.
struct Group {
  Role role = Role::kLoop;
  std::vector<NodeId> nodes;
};

struct Groups {
  std::vector<Group> in_order;
  std::vector<int> of;  // by node, position in `in_order`; -1 for inputs and views
};

// Loops over the same rows are fused wherever that leaves no cycle between steps.
Groups fuse(const Graph& graph, const Values& values);

// The loop node of `group` whose register holds what `id` reads, or -1 when it must come from
// memory.
NodeId register_root(const Graph& graph, const Values& values, NodeId id);

}  // namespace npu::cpu
