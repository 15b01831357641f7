// Re-runs every shape rule: each pass is checked by calling this on its result.
#pragma once

#include <optional>

#include "ir/graph.h"

namespace npu {

// The first broken rule, with the node's printed form as `where`; nothing when the graph is sound.
// Checks: operands before users, arity, inferred type equals stored type, unique input and output
// names, outputs exist.
std::optional<Error> verify(const Graph& graph);

}  // namespace npu
