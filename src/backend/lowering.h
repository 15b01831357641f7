// The walk that both graph writers share.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace npu {

// Writes every node that is not an input, in order, by its row's lowering (&OpDef::onnx or
// &OpDef::openvino). `refs`, by node id, holds the inputs' references and is filled with the
// others. Where `special` gives a value for a node, its row is not asked.
void lower_nodes(const Graph& graph, OpDef::Lower OpDef::*format, GraphWriter& writer,
                 std::vector<GraphWriter::Ref>& refs,
                 const std::function<std::optional<GraphWriter::Ref>(NodeId)>& special = {});

}  // namespace npu
