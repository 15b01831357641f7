// The pass driver: applies rules bottom-up until none fits, and verifies after every pass.
#include "transform/passes.h"

#include "ir/text.h"
#include "ir/verify.h"
#include "transform/legalise.h"

namespace npu {
namespace {

// Far above what any pass needs; reaching a limit means that two rules undo each other.
constexpr size_t kMaxSweeps = 100;
constexpr size_t kMaxRewritesOfOneNode = 100;

std::string loop_text(const Pass& pass, const std::vector<const Rule*>& fired) {
  const std::string_view last = fired.back()->name;
  std::string_view other = last;
  for (const Rule* rule : fired)
    if (rule->name != last) other = rule->name;
  return "pass " + std::string(pass.name) + " does not end: rules " + std::string(other) + " and " +
         std::string(last) + " keep undoing each other";
}

class RulePass {
 public:
  RulePass(const Pass& pass, const PassOptions& options) : pass_(pass), options_(options) {
    for (const Rule& rule : pass.rules)
      if (!options.disabled.contains(rule.name)) rules_.push_back(&rule);
  }

  Graph run(const Graph& graph) {
    Graph result = graph;
    for (size_t sweep = 0;; ++sweep) {
      fired_.clear();
      result = sweep_once(result);
      if (fired_.empty()) return result;
      NPU_CHECK(sweep < kMaxSweeps, loop_text(pass_, fired_));
    }
  }

 private:
  Graph sweep_once(const Graph& graph) {
    Builder builder(graph.name());
    std::vector<Value> values(graph.nodes().size());
    for (NodeId id : graph.inputs())
      values[static_cast<size_t>(id)] = builder.input(graph.node(id).name, graph.node(id).type);
    for (size_t id = 0; id < values.size(); ++id) {
      const Node& node = graph.nodes()[id];
      if (node.is_input()) continue;
      std::vector<Value> operands;
      for (NodeId operand : node.inputs) operands.push_back(values[static_cast<size_t>(operand)]);
      values[id] = rewrite(builder, builder.apply(*node.op, std::move(operands), node.attrs));
    }
    for (const GraphOutput& output : graph.outputs())
      builder.output(output.name, values[static_cast<size_t>(output.node)]);
    return std::move(builder).build();
  }

  // Applies rules to `value`, and to what they return, until none fits.
  Value rewrite(Builder& builder, Value value) {
    for (size_t step = 0;; ++step) {
      const Value next = rewrite_once(builder, value);
      if (!next.valid()) return value;
      NPU_CHECK(step < kMaxRewritesOfOneNode, loop_text(pass_, fired_));
      value = next;
    }
  }

  Value rewrite_once(Builder& builder, Value value) {
    const Node& node = builder.node(value.id);
    if (node.is_input()) return {};
    std::vector<Value> operands;
    for (NodeId operand : node.inputs) operands.push_back({&builder, operand});
    for (const Rule* rule : rules_) {
      const Value next = rule->apply(builder, node, operands);
      if (!next.valid() || next.id == value.id) continue;
      NPU_CHECK(next.type() == node.type, "rule " + std::string(rule->name) + " of pass " +
                                              std::string(pass_.name) + " turned " +
                                              node.type.text() + " into " + next.type().text());
      fired_.push_back(rule);
      if (options_.fired) options_.fired(*rule);
      return next;
    }
    return {};
  }

  const Pass& pass_;
  const PassOptions& options_;
  std::vector<const Rule*> rules_;
  std::vector<const Rule*> fired_;  // in this sweep
};

}  // namespace

const Pass* find_pass(std::string_view name) {
  for (const std::span<const Pass> list : {default_passes(), legalise_passes()})
    for (const Pass& pass : list)
      if (pass.name == name) return &pass;
  return nullptr;
}

Graph run_passes(const Graph& graph, std::span<const Pass> passes, const PassOptions& options) {
  Graph result = graph;
  for (const Pass& pass : passes) {
    if (options.disabled.contains(pass.name)) continue;
    Graph next = pass.rules.empty() ? pass.run(result) : RulePass(pass, options).run(result);
    if (const std::optional<Error> error = verify(next))
      throw InternalError("after pass " + std::string(pass.name) + ": " + error->text());
    const bool changed = options.after && print_graph(next) != print_graph(result);
    result = std::move(next);
    if (changed) options.after(pass.name, result);
  }
  return result;
}

}  // namespace npu
