// Reverse-mode differentiation: one pass over the nodes from last to first, each contributing the
// cotangents that its row's rule builds.
#include "transform/vjp.h"

#include <optional>

#include "ir/text.h"
#include "ops/ops.h"

namespace npu {
namespace {

Error vjp_error(const Graph& graph, std::string what, std::string got, std::string hint = "") {
  return {ErrorKind::kBadInput, "vjp of graph " + graph.name(), std::move(what), std::move(got),
          std::move(hint)};
}

// The names that the caller gave must exist, be float, and leave "d_NAME" free.
std::optional<Error> check_names(const Graph& graph, const std::vector<std::string>& seeds,
                                 const std::vector<std::string>& wrt) {
  for (const std::string& name : seeds) {
    const NodeId id = graph.find_output(name);
    if (id < 0) return vjp_error(graph, "a seed names an output", name);
    if (!is_float(graph.node(id).type.dtype))
      return vjp_error(graph, "a seed's output is float", name + " " + graph.node(id).type.text());
    if (graph.find_input("d_" + name) >= 0)
      return vjp_error(graph, "no input is named like a seed's cotangent", "d_" + name);
  }
  for (const std::string& name : wrt) {
    const NodeId id = graph.find_input(name);
    if (id < 0) return vjp_error(graph, "wrt names an input", name);
    if (!is_float(graph.node(id).type.dtype))
      return vjp_error(graph, "a wrt input is float", name + " " + graph.node(id).type.text());
    if (graph.find_output("d_" + name) >= 0)
      return vjp_error(graph, "no output is named like a derivative", "d_" + name);
  }
  return std::nullopt;
}

// True for the nodes whose value depends on an input in `wrt`: only these need cotangents.
std::vector<bool> depends_on(const Graph& graph, const std::vector<std::string>& wrt) {
  std::vector<bool> depends(graph.nodes().size(), false);
  for (const std::string& name : wrt) depends[static_cast<size_t>(graph.find_input(name))] = true;
  for (size_t id = 0; id < depends.size(); ++id) {
    for (NodeId operand : graph.nodes()[id].inputs) {
      if (depends[static_cast<size_t>(operand)]) depends[id] = true;
    }
  }
  return depends;
}

class ReversePass {
 public:
  ReversePass(const Graph& forward, const std::vector<std::string>& wrt)
      : forward_(forward),
        builder_(forward.name()),
        leads_from_wrt_(depends_on(forward, wrt)),
        values_(forward.nodes().size()),
        cotangents_(forward.nodes().size()) {
    for (NodeId id : forward.inputs()) import_node(builder_, forward_, id, values_);
    for (size_t id = 0; id < values_.size(); ++id)
      import_node(builder_, forward_, static_cast<NodeId>(id), values_);
    for (const GraphOutput& output : forward.outputs())
      builder_.output(output.name, value(output.node));
  }

  void add_seed(const std::string& output_name) {
    const NodeId id = forward_.find_output(output_name);
    accumulate(id, builder_.input("d_" + output_name, forward_.node(id).type));
  }

  std::optional<Error> run() {
    for (size_t i = values_.size(); i-- > 0;) {
      const NodeId id = static_cast<NodeId>(i);
      if (!leads_from_wrt_[i] || !cotangents_[i].valid() || forward_.node(id).is_input()) continue;
      if (std::optional<Error> error = propagate(id)) return error;
    }
    return std::nullopt;
  }

  void add_derivative(const std::string& input_name) {
    const NodeId id = forward_.find_input(input_name);
    Value derivative = cotangents_[static_cast<size_t>(id)];
    if (!derivative.valid()) derivative = ops::constant(builder_, forward_.node(id).type, 0.0);
    builder_.output("d_" + input_name, derivative);
  }

  Graph finish() && { return std::move(builder_).build(); }

 private:
  Value value(NodeId id) const { return values_[static_cast<size_t>(id)]; }

  void accumulate(NodeId id, Value cotangent) {
    Value& sum = cotangents_[static_cast<size_t>(id)];
    sum = sum.valid() ? ops::add(sum, cotangent) : cotangent;
  }

  std::optional<Error> propagate(NodeId id) {
    const Node& node = forward_.node(id);
    if (node.op->vjp == nullptr) {
      return vjp_error(forward_, "every op between wrt and seeds has a derivative",
                       print_node(forward_, id), std::string(node.op->no_grad_reason));
    }
    std::vector<Value> operands;
    for (NodeId operand : node.inputs) operands.push_back(value(operand));
    // Copies, since accumulate() rewrites cotangents_.
    const Value output = value(id);
    const Value cotangent = cotangents_[static_cast<size_t>(id)];
    const std::vector<Value> grads =
        node.op->vjp(VjpContext{builder_, node, operands, output, cotangent});
    NPU_CHECK(grads.size() == node.inputs.size(), print_node(forward_, id));
    for (size_t i = 0; i < grads.size(); ++i) {
      const NodeId operand = node.inputs[i];
      if (!grads[i].valid() || !leads_from_wrt_[static_cast<size_t>(operand)]) continue;
      NPU_CHECK(grads[i].type() == forward_.node(operand).type,
                print_node(forward_, id) + " gives " + grads[i].type().text() + " for operand " +
                    print_node(forward_, operand));
      accumulate(operand, grads[i]);
    }
    return std::nullopt;
  }

  const Graph& forward_;
  Builder builder_;
  std::vector<bool> leads_from_wrt_;
  std::vector<Value> values_;      // of forward's nodes, in builder_
  std::vector<Value> cotangents_;  // of forward's nodes; invalid while none arrived
};

}  // namespace

Result<Graph> vjp(const Graph& forward, const std::vector<std::string>& seeds,
                  const std::vector<std::string>& wrt) {
  if (std::optional<Error> error = check_names(forward, seeds, wrt)) return *error;
  ReversePass pass(forward, wrt);
  for (const std::string& name : seeds) pass.add_seed(name);
  if (std::optional<Error> error = pass.run()) return *error;
  for (const std::string& name : wrt) pass.add_derivative(name);
  return std::move(pass).finish();
}

}  // namespace npu
