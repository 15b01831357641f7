// Planning: passes, cut, canonical form, dedupe and first placement. Nothing is compiled here.
#include "compile/plan.h"

#include <unordered_map>

#include "base/log.h"
#include "ir/text.h"
#include "transform/legalise.h"

namespace npu {
namespace {

// Why the backend can't take this part; nothing when it can.
std::optional<std::string> unsupported_node(Backend& backend, const Graph& part) {
  for (size_t id = 0; id < part.nodes().size(); ++id) {
    if (part.nodes()[id].is_input()) continue;
    const auto reason = backend.unsupported(part, static_cast<NodeId>(id));
    if (reason) return std::string(part.nodes()[id].op->name) + ": " + *reason;
  }
  return std::nullopt;
}

class Planner {
 public:
  Planner(Backend& backend, const PlanOptions& options)
      : backend_(backend),
        options_(options),
        legalise_(legalise_passes(backend.traits().legalise, backend.traits().name)) {}

  void add(const NamedGraph& named) {
    PlannedGraph planned;
    planned.group = named.group;
    planned.name = named.graph.name();
    planned.graph = run_passes(named.graph, default_passes(), options_.passes);
    planned.graph = run_passes(planned.graph, legalise_, options_.passes);
    check_names(planned.graph);
    std::string host_reason;
    if (options_.host_groups.contains(named.group)) host_reason = "--host-parts";
    const PartLabels labels = cut(planned.graph, host_reason);
    for (const Part& part : split(planned.graph, labels)) add_part(planned, part, host_reason);
    if (!host_reason.empty()) log_placement(planned.name, host_reason);
    plan_.graphs.push_back(std::move(planned));
  }

  Plan take() && { return std::move(plan_); }

 private:
  // Bindings are by name, so a name stands for one value.
  static void check_names(const Graph& graph) {
    for (const GraphOutput& output : graph.outputs()) {
      NPU_CHECK(graph.find_input(output.name) < 0,
                "graph " + graph.name() + " has both an input and an output " + output.name);
    }
  }

  // A graph that stays on the host is not cut: there is no compiler to spare.
  PartLabels cut(const Graph& graph, std::string& host_reason) const {
    if (host_reason.empty()) {
      Result<PartLabels> labels = partition(graph, options_.limits);
      if (labels) return std::move(labels).take();
      host_reason = "can't be cut: " + labels.error().text();
    }
    return partition(graph, PartLimits{}).take();
  }

  void add_part(PlannedGraph& planned, const Part& part, const std::string& host_reason) {
    for (const GraphOutput& output : part.graph.outputs()) {
      if (planned.graph.find_output(output.name) < 0) {
        planned.temporaries[output.name] = part.graph.node(output.node).type;
      }
    }
    CanonicalPart canonical = canonicalize(part.graph);
    PlannedPart placed;
    placed.input_names = std::move(canonical.input_names);
    placed.output_names = std::move(canonical.output_names);
    placed.host_reason = host_reason;
    const std::string name = planned.name + "." + std::to_string(planned.parts.size());
    if (host_reason.empty()) {
      if (const auto reason = unsupported_node(backend_, canonical.graph)) {
        placed.host_reason = "unsupported: " + *reason;
        log_placement(name, placed.host_reason);
      }
    }
    placed.on_host = !placed.host_reason.empty();
    placed.distinct = find_or_add(std::move(canonical.graph), planned.group, name);
    ++plan_.distinct[placed.distinct].uses;
    planned.parts.push_back(std::move(placed));
  }

  size_t find_or_add(Graph graph, const std::string& group, const std::string& name) {
    std::string text = print_graph(graph);
    const auto [found, is_new] = by_text_.emplace(text, plan_.distinct.size());
    if (is_new) {
      DistinctPart part;
      part.graph = std::move(graph);
      part.text = std::move(text);
      part.group = group;
      part.first_use = name;
      plan_.distinct.push_back(std::move(part));
    }
    return found->second;
  }

  static void log_placement(const std::string& name, const std::string& reason) {
    log_info("plan", name + " runs on the host: " + reason);
  }

  Backend& backend_;
  const PlanOptions& options_;
  std::vector<Pass> legalise_;  // for the backend's compiler
  Plan plan_;
  std::unordered_map<std::string, size_t> by_text_;  // canonical text → index into distinct
};

}  // namespace

const PlannedGraph& Plan::graph(std::string_view name) const {
  for (const PlannedGraph& planned : graphs) {
    if (planned.name == name) return planned;
  }
  NPU_CHECK(false, "no graph " + std::string(name) + " in the plan");
  return graphs.front();
}

Plan make_plan(const std::vector<NamedGraph>& graphs, Backend& backend,
               const PlanOptions& options) {
  Planner planner(backend, options);
  for (const NamedGraph& graph : graphs) planner.add(graph);
  return std::move(planner).take();
}

}  // namespace npu
