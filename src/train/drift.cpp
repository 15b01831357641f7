// Watching a run against a reference.
#include "train/drift.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/clock.h"

namespace npu {
namespace {

constexpr double kLossShare = 0.2;

// A micro-batch alone weighs more than as one of --accum, so its gradients may overflow under a
// scale that the step was well with.
constexpr int kScaleHalvings = 10;

bool finite_gradients(const RunResult& result) {
  return std::ranges::all_of(result.parameters,
                             [](const Parameter& p) { return all_finite(p.grad); });
}

// Loss and gradients, unscaled. Values are shared with `parameters`, gradients are new. A scale
// that overflows is halved here, as the run would do.
Result<RunResult> gradients_of(ModelRunner& runner, std::span<const Parameter> parameters,
                               const Batch& batch, double loss_scale) {
  const double weight = 1.0 / static_cast<double>(std::max<size_t>(1, loss_rows(batch).size()));
  for (int halvings = 0;; ++halvings, loss_scale = std::max(1.0, loss_scale / 2)) {
    RunResult result;
    for (const Parameter& p : parameters) {
      result.parameters.push_back({p.name, p.value, Tensor(DType::kF32, p.value.shape()), {}, {}});
    }
    runner.set_adapter(result.parameters);
    const Result<LossSum> loss =
        runner.forward_backward(batch, weight * loss_scale, result.parameters);
    if (!loss.ok()) return loss.error();
    result.loss = loss.value().nats * weight;
    if (loss_scale > 1) {
      const bool overflow = std::isfinite(result.loss) && !finite_gradients(result);
      if (overflow && halvings < kScaleHalvings) continue;
      scale_gradients(result.parameters, 1 / loss_scale);
    }
    return result;
  }
}

// Order for choosing: what is not finite comes last.
double badness(const DriftReport& report) {
  const Comparison& c = report.comparison;
  if (!c.finite) return std::numeric_limits<double>::infinity();
  return std::max(c.worst_grad_rel, c.loss_rel / kLossShare);
}

}  // namespace

bool DriftReport::within(double limit) const {
  return comparison.pass({.loss_rel = kLossShare * limit, .grad_rel = limit});
}

bool DriftReport::gross() const {
  if (!comparison.finite) return reference_finite;
  return comparison.worst_grad_rel > 0.5 || comparison.loss_rel > 0.05;
}

void DriftMonitor::prepare() {
  if (reference_ == nullptr) reference_ = make_reference_();
}

Result<DriftReport> DriftMonitor::measure(ModelRunner& runner,
                                          std::span<const Parameter> parameters, const Batch& batch,
                                          double loss_scale) {
  double seconds = 0;
  {
    const Stopwatch watch(seconds);
    prepare();
    Result<RunResult> expected = gradients_of(*reference_, parameters, batch, loss_scale);
    if (!expected.ok()) return expected.error();
    expected_ = std::move(expected).take();
  }
  Result<DriftReport> report = measure_again(runner, batch, loss_scale);
  if (report.ok()) report.value().seconds += seconds;
  return report;
}

Result<DriftReport> DriftMonitor::measure_again(ModelRunner& runner, const Batch& batch,
                                                double loss_scale) {
  DriftReport report;
  const Stopwatch watch(report.seconds);
  const Result<RunResult> run = gradients_of(runner, expected_.parameters, batch, loss_scale);
  if (!run.ok()) return run.error();
  report.comparison = compare_runs(run.value(), expected_);
  report.reference_finite = std::isfinite(expected_.loss) && finite_gradients(expected_);
  return report;
}

Result<std::optional<HostGroups>> groups_to_move(
    std::vector<std::string> candidates, double limit,
    const std::function<Result<DriftReport>(const HostGroups&)>& measure) {
  HostGroups chosen;
  while (!candidates.empty()) {
    size_t best = 0;
    std::optional<DriftReport> least;
    for (size_t i = 0; i < candidates.size(); ++i) {
      HostGroups tried = chosen;
      tried.insert(candidates[i]);
      Result<DriftReport> report = measure(tried);
      if (!report.ok()) return report.error();
      if (least && badness(report.value()) >= badness(*least)) continue;
      best = i;
      least = std::move(report).take();
    }
    chosen.insert(candidates[best]);
    candidates.erase(candidates.begin() + static_cast<std::ptrdiff_t>(best));
    if (least->within(limit)) return std::optional<HostGroups>(chosen);
  }
  return std::optional<HostGroups>();
}

SessionOptions reference_session(const SessionOptions& session) {
  const auto device = make_backend(session.backend).take();
  const Traits& traits = device->traits();
  SessionOptions reference = whole_on(session, reference_backend(traits.name));
  // The reference computes in what the device computes in, or the comparison would be of dtypes.
  reference.activation_dtype = session.activation_dtype.value_or(traits.compute_dtype);
  reference.graphs.eval = false;
  reference.compile.expect_cached = false;
  return reference;
}

std::vector<std::string> groups_on_device(const Plan& plan) {
  std::vector<std::string> groups;
  for (const PlannedGraph& graph : plan.graphs) {
    const bool trains = !graph.name.starts_with(kLayerEval) && !graph.name.starts_with(kCeStats);
    const bool on_device = std::any_of(graph.parts.begin(), graph.parts.end(),
                                       [](const PlannedPart& part) { return !part.on_host; });
    const bool known = std::find(groups.begin(), groups.end(), graph.group) != groups.end();
    if (trains && on_device && !known) groups.push_back(graph.group);
  }
  return groups;
}

}  // namespace npu
