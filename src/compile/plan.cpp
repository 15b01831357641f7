// Planning: passes, cut, canonical form, dedupe and first placement. Nothing is compiled here.
#include "compile/plan.h"

#include "base/log.h"
#include "compile/distinct.h"
#include "transform/legalise.h"

namespace npu {
namespace {

class Planner {
 public:
  Planner(Backend& backend, const PlanOptions& options)
      : options_(options),
        legalise_(legalise_passes(backend.traits().legalise, backend.traits().name)),
        parts_(plan_.distinct, backend, options.compile) {
    plan_.limits = options.limits;
  }

  void add(const NamedGraph& named) {
    PlannedGraph planned;
    planned.group = named.group;
    planned.name = named.graph.name();
    planned.graph = run_passes(named.graph, default_passes(), options_.passes);
    planned.graph = run_passes(planned.graph, legalise_, options_.passes);
    check_names(planned.graph);
    if (options_.host_groups.contains(named.group)) planned.host_reason = "--host-parts";
    const PartLabels labels = cut(planned);
    for (const Part& part : split(planned.graph, labels)) add_part(planned, part);
    if (!planned.host_reason.empty()) {
      log_info("plan", planned.name + " runs on the host: " + planned.host_reason);
    }
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
  PartLabels cut(PlannedGraph& planned) {
    if (planned.host_reason.empty()) {
      if (options_.choose_cut) {
        if (std::optional<ChosenCut> chosen = options_.choose_cut(planned.graph)) {
          planned.cut_note = std::move(chosen->note);
          if (!chosen->digest.empty()) plan_.cut_digests.push_back(std::move(chosen->digest));
          return std::move(chosen->labels);
        }
      }
      Result<PartLabels> labels = partition(planned.graph, options_.limits);
      if (labels) return std::move(labels).take();
      planned.host_reason = "can't be cut: " + labels.error().text();
    }
    return partition(planned.graph, PartLimits{}).take();
  }

  void add_part(PlannedGraph& planned, const Part& part) {
    for (const GraphOutput& output : part.graph.outputs()) {
      if (planned.graph.find_output(output.name) < 0) {
        planned.temporaries[output.name] = part.graph.node(output.node).type;
      }
    }
    CanonicalPart canonical = canonicalize(part.graph);
    PlannedPart placed;
    placed.input_names = std::move(canonical.input_names);
    placed.output_names = std::move(canonical.output_names);
    placed.name = planned.name + "." + std::to_string(planned.parts.size());
    placed.distinct = parts_.find_or_add(std::move(canonical.graph), planned.group, placed.name);
    DistinctPart& distinct = plan_.distinct[placed.distinct];
    ++distinct.uses;
    placed.host_reason = planned.host_reason;
    if (placed.host_reason.empty() && !distinct.unsupported.empty()) {
      placed.host_reason = "unsupported: " + distinct.unsupported;
    }
    placed.on_host = !placed.host_reason.empty();
    planned.parts.push_back(std::move(placed));
  }

  const PlanOptions& options_;
  std::vector<Pass> legalise_;  // for the backend's compiler
  Plan plan_;
  DistinctParts parts_;
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
