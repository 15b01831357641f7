// The default passes, in order.
#include "transform/rules.h"

namespace npu {
namespace {

Graph drop_unused_inputs(const Graph& graph) {
  Builder builder(graph.name());
  std::vector<Value> values(graph.nodes().size());
  for (NodeId id : graph.inputs()) import_node(builder, graph, id, values);
  for (const GraphOutput& output : graph.outputs())
    builder.output(output.name, import_node(builder, graph, output.node, values));
  return std::move(builder).build(/*drop_unused_inputs=*/true);
}

// One pass, since rules of either table make room for rules of the other.
std::vector<Rule> exact_rules() {
  std::vector<Rule> rules(movement_rules().begin(), movement_rules().end());
  rules.insert(rules.end(), arithmetic_rules().begin(), arithmetic_rules().end());
  return rules;
}

}  // namespace

std::span<const Pass> default_passes() {
  static const std::vector<Rule> kExactRules = exact_rules();
  static const Pass kPasses[] = {
      {"simplify", "fewer and smaller values by identities that keep every bit", kExactRules},
      {"algebra", "identities of real numbers; switch off to compare bit for bit", algebra_rules()},
      {"dead_code",
       "what no output needs is not loaded, bound or compiled",
       {},
       drop_unused_inputs},
  };
  return kPasses;
}

}  // namespace npu
