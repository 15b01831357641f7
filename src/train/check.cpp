// Comparing loss and gradients of two runs.
#include "train/check.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace npu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void sort_worst_first(std::vector<GradientError>& grads) {
  std::ranges::stable_sort(
      grads, [](const GradientError& a, const GradientError& b) { return a.rel > b.rel; });
}

// Never NaN, which would compare as "not worse" and vanish from every maximum.
double relative_difference(double value, double reference) {
  if (!std::isfinite(value) || !std::isfinite(reference)) return kInfinity;
  if (value == reference) return 0;
  return reference == 0 ? kInfinity : std::abs(value - reference) / std::abs(reference);
}

}  // namespace

bool all_finite(const Tensor& gradient) {
  const auto values = gradient.values<float>();
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

RunResult run_once(ModelRunner& runner, std::vector<Parameter> parameters, const Batch& batch) {
  runner.set_adapter(parameters);
  const size_t tokens = loss_rows(batch).size();
  if (tokens == 0) {
    fail_input("batch", "no row carries loss", "every label is " + std::to_string(kNoLoss),
               "labels[i] is the id of token i itself where loss is taken, as in Hugging Face");
  }
  const double weight = 1.0 / static_cast<double>(tokens);
  const LossSum sum = runner.forward_backward(batch, weight, parameters).take();
  return {sum.nats * weight, std::move(parameters)};
}

Comparison compare_runs(const RunResult& run, const RunResult& reference) {
  NPU_CHECK(run.parameters.size() == reference.parameters.size(), "runs of different adapters");
  Comparison out;
  out.loss = run.loss;
  out.reference_loss = reference.loss;
  out.finite = std::isfinite(run.loss) && std::isfinite(reference.loss);
  out.loss_rel = relative_difference(run.loss, reference.loss);
  if (!std::isfinite(run.loss)) out.not_finite.emplace_back("loss");
  for (size_t i = 0; i < run.parameters.size(); ++i) {
    const Difference d = difference(run.parameters[i].grad, reference.parameters[i].grad);
    GradientError error{run.parameters[i].name, d.rel_l2, d.cosine, true};
    if (!d.finite) {
      error.rel = kInfinity;
      error.cosine = 0;
      error.finite = all_finite(run.parameters[i].grad);
      if (!error.finite) out.not_finite.push_back(error.name);
      out.finite = false;
    }
    out.worst_grad_rel = std::max(out.worst_grad_rel, error.rel);
    out.min_cosine = std::min(out.min_cosine, error.cosine);
    out.grads.push_back(std::move(error));
  }
  sort_worst_first(out.grads);
  return out;
}

bool Comparison::pass(const CheckLimits& limits) const {
  return finite && loss_rel <= limits.loss_rel && worst_grad_rel <= limits.grad_rel;
}

double Comparison::severity(const CheckLimits& limits) const {
  if (!finite) return kInfinity;
  return std::max(loss_rel / limits.loss_rel, worst_grad_rel / limits.grad_rel);
}

Comparison worst_of(std::span<const Comparison> comparisons) {
  NPU_CHECK(!comparisons.empty(), "nothing was compared");
  Comparison out = comparisons.front();
  std::map<std::string, GradientError*, std::less<>> by_name;
  for (GradientError& g : out.grads) by_name[g.name] = &g;
  for (const Comparison& c : comparisons.subspan(1)) {
    if (c.loss_rel > out.loss_rel) {
      out.loss = c.loss;
      out.reference_loss = c.reference_loss;
      out.loss_rel = c.loss_rel;
    }
    out.worst_grad_rel = std::max(out.worst_grad_rel, c.worst_grad_rel);
    out.min_cosine = std::min(out.min_cosine, c.min_cosine);
    out.finite = out.finite && c.finite;
    for (const std::string& name : c.not_finite) {
      if (std::ranges::find(out.not_finite, name) == out.not_finite.end()) {
        out.not_finite.push_back(name);
      }
    }
    for (const GradientError& g : c.grads) {
      GradientError& worst = *by_name.at(g.name);
      worst.rel = std::max(worst.rel, g.rel);
      worst.cosine = std::min(worst.cosine, g.cosine);
      worst.finite = worst.finite && g.finite;
    }
  }
  sort_worst_first(out.grads);
  return out;
}

std::vector<GroupBlame> blame_groups(
    std::span<const std::string> groups,
    const std::function<Comparison(const std::string& group)>& with_group_on_host,
    const CheckLimits& limits) {
  std::vector<GroupBlame> blame;
  for (const std::string& group : groups) blame.push_back({group, with_group_on_host(group)});
  std::ranges::stable_sort(blame, [&limits](const GroupBlame& a, const GroupBlame& b) {
    return a.on_host.severity(limits) < b.on_host.severity(limits);
  });
  return blame;
}

std::vector<GroupPlacement> placement_of(const Plan& plan) {
  std::vector<GroupPlacement> placement;
  for (const PlannedGraph& graph : plan.graphs) {
    auto found = std::ranges::find(placement, graph.group, &GroupPlacement::group);
    if (found == placement.end()) {
      placement.push_back({graph.group, 0, 0, {}});
      found = std::prev(placement.end());
    }
    for (const PlannedPart& part : graph.parts) {
      ++found->parts;
      if (!part.on_host) continue;
      ++found->host_parts;
      if (std::ranges::find(found->host_reasons, part.host_reason) == found->host_reasons.end()) {
        found->host_reasons.push_back(part.host_reason);
      }
    }
  }
  return placement;
}

}  // namespace npu
