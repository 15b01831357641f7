// Groups of nodes for which ONNX has one operation, or a cheaper way: ONNX Runtime finds none of
// them itself, and runs each node of the group over memory (docs/decisions/011-constant-weights.md
// has the measurements).
#pragma once

#include <optional>
#include <vector>

#include "ir/graph.h"

namespace npu {

// The value of `id` where it is the last node of such a group; nothing elsewhere. `refs`, by node
// id, holds what was written before; nodes of the group that nothing else reads become useless.
std::optional<GraphWriter::Ref> write_onnx_pattern(const Graph& graph, NodeId id,
                                                   const std::vector<GraphWriter::Ref>& refs,
                                                   GraphWriter& writer);

}  // namespace npu
