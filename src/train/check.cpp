// Comparing loss and gradients of two runs.
#include "train/check.h"

#include <algorithm>
#include <cmath>

namespace npu {

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
  out.loss_rel = std::abs(run.loss - reference.loss) / std::abs(reference.loss);
  out.finite = std::isfinite(run.loss) && std::isfinite(reference.loss);
  for (size_t i = 0; i < run.parameters.size(); ++i) {
    const Difference d = difference(run.parameters[i].grad, reference.parameters[i].grad);
    out.finite = out.finite && d.finite;
    out.grads.push_back({run.parameters[i].name, d.rel_l2, d.cosine});
    out.worst_grad_rel = std::max(out.worst_grad_rel, d.rel_l2);
    out.min_cosine = std::min(out.min_cosine, d.cosine);
  }
  std::stable_sort(out.grads.begin(), out.grads.end(),
                   [](const GradientError& a, const GradientError& b) { return a.rel > b.rel; });
  return out;
}

bool Comparison::pass(const CheckLimits& limits) const {
  return finite && loss_rel <= limits.loss_rel && worst_grad_rel <= limits.grad_rel;
}

}  // namespace npu
