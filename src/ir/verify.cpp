// The checks that every pass's result must stand.
#include "ir/verify.h"

#include <unordered_set>

#include "ir/text.h"

namespace npu {
namespace {

Error fault(std::string where, std::string what, std::string got) {
  Error error;
  error.where = std::move(where);
  error.what = std::move(what);
  error.got = std::move(got);
  return error;
}

std::optional<Error> verify_input(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const std::string where = print_node(graph, id);
  if (!node.inputs.empty()) return fault(where, "an input has no operands", "some");
  if (auto rule = broken_type_bound(node.type)) return fault(where, *rule, node.type.text());
  return std::nullopt;
}

std::optional<Error> verify_application(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  std::vector<TensorType> types;
  for (const NodeId operand : node.inputs) {
    if (operand < 0 || operand >= id) {
      return fault(print_node(graph, id), "operands stand before their users",
                   std::to_string(operand));
    }
    types.push_back(graph.node(operand).type);
  }
  const Result<TensorType> type = infer_checked(*node.op, types, node.attrs);
  if (!type.ok()) return fault(print_node(graph, id), type.error().what, type.error().got);
  if (type.value() != node.type) {
    return fault(print_node(graph, id), "the stored type is the one that the shape rule gives",
                 type.value().text());
  }
  return std::nullopt;
}

std::optional<Error> verify_names(const Graph& graph) {
  std::unordered_set<std::string> inputs, outputs;
  std::vector<NodeId> input_nodes;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const NodeId id = static_cast<NodeId>(i);
    const Node& node = graph.node(id);
    if (!node.is_input()) continue;
    input_nodes.push_back(id);
    if (!inputs.insert(node.name).second) {
      return fault(print_node(graph, id), "input names differ", node.name);
    }
  }
  if (input_nodes != graph.inputs()) {
    return fault("graph " + graph.name(), "the list of inputs holds all input nodes in order",
                 std::to_string(graph.inputs().size()) + " inputs");
  }
  for (const GraphOutput& output : graph.outputs()) {
    const std::string where = "output " + output.name;
    if (!outputs.insert(output.name).second) return fault(where, "output names differ", "two");
    if (output.node < 0 || output.node >= static_cast<NodeId>(graph.nodes().size())) {
      return fault(where, "outputs are nodes of the graph", std::to_string(output.node));
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> verify(const Graph& graph) {
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const NodeId id = static_cast<NodeId>(i);
    auto error =
        graph.node(id).is_input() ? verify_input(graph, id) : verify_application(graph, id);
    if (error) return error;
  }
  return verify_names(graph);
}

}  // namespace npu
