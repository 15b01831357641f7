// Walking a graph with a GraphWriter: each op says in its row what it becomes.
#include "backend/lowering.h"

namespace npu {

void lower_nodes(const Graph& graph, OpDef::Lower OpDef::*format, GraphWriter& writer,
                 std::vector<GraphWriter::Ref>& refs,
                 const std::function<std::optional<GraphWriter::Ref>(NodeId)>& special) {
  std::vector<GraphWriter::Ref> inputs;
  std::vector<TensorType> input_types;
  for (size_t id = 0; id < graph.nodes().size(); ++id) {
    const Node& node = graph.nodes()[id];
    if (node.is_input()) continue;
    if (special) {
      if (const auto value = special(static_cast<NodeId>(id))) {
        refs[id] = *value;
        continue;
      }
    }
    inputs.clear();
    input_types.clear();
    for (const NodeId operand : node.inputs) {
      inputs.push_back(refs[static_cast<size_t>(operand)]);
      input_types.push_back(graph.node(operand).type);
    }
    NPU_CHECK(node.op->*format != nullptr, std::string(node.op->name) + " has no such lowering");
    refs[id] = (node.op->*format)({writer, node, inputs, input_types});
  }
}

}  // namespace npu
