// The walk that both graph writers share.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace npu {

// Writes every node that is not an input, in order, by its row's lowering (&OpDef::onnx or
// &OpDef::openvino). `refs`, by node id, holds the inputs' references and is filled with the
// others.
void lower_nodes(const Graph& graph, OpDef::Lower OpDef::*format, GraphWriter& writer,
                 std::vector<GraphWriter::Ref>& refs);

}  // namespace npu
