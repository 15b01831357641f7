// The training loop's one step, and the state that a checkpoint must hold.
#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/clock.h"

namespace npu {
namespace {

int64_t real_tokens(const Batch& batch) {
  return std::count_if(batch.segments.begin(), batch.segments.end(),
                       [](int32_t segment) { return segment >= 0; });
}

void copy_state(const std::map<std::string, Tensor>& state, const std::string& name, Tensor& to) {
  const auto found = state.find(name);
  if (found == state.end()) {
    fail_input("checkpoint", "tensor " + name + " is missing", "",
               "resume with the options of the run that wrote it, or start anew without --resume");
  }
  if (found->second.shape() != to.shape() || found->second.dtype() != DType::kF32) {
    fail_input("checkpoint", "tensor " + name + " must be f32 " + shape_text(to.shape()),
               std::string(dtype_name(found->second.dtype())) + shape_text(found->second.shape()),
               "resume with the same --rank and --targets");
  }
  std::memcpy(to.mutable_data(), found->second.data(), to.bytes());
}

}  // namespace

Trainer::Trainer(ModelRunner& runner, std::vector<Parameter> parameters, TrainConfig config)
    : runner_(runner),
      parameters_(std::move(parameters)),
      config_(config),
      scaler_(config.loss_scale) {
  runner_.set_adapter(parameters_);
}

Result<StepReport> Trainer::train_step(std::span<const Batch> micro_batches) {
  const double start = seconds_now();
  StepReport report;
  report.step = step_ + 1;
  for (const Batch& batch : micro_batches) {
    report.trained_tokens += static_cast<int64_t>(loss_rows(batch).size());
    report.tokens += real_tokens(batch);
  }
  for (Parameter& p : parameters_) {
    const auto grad = p.grad.mutable_values<float>();
    std::fill(grad.begin(), grad.end(), 0.0f);
  }
  runner_.runtime().reset_timing();
  const double weight = 1.0 / static_cast<double>(std::max<int64_t>(1, report.trained_tokens));
  double nats = 0;
  for (const Batch& batch : micro_batches) {
    const Result<LossSum> loss =
        runner_.forward_backward(batch, weight * scaler_.scale(), parameters_);
    if (!loss.ok()) return loss.error();
    nats += loss.value().nats;
  }
  report.loss = nats * weight;
  report.loss_scale = scaler_.scale();
  const double optimizer_start = seconds_now();
  if (scaler_.active()) scale_gradients(parameters_, 1.0 / scaler_.scale());
  report.grad_norm = global_grad_norm(parameters_, runner_.host_threads());
  report.lr =
      config_.adamw.lr * schedule_factor(config_.schedule, step_, config_.warmup, config_.steps);
  ++step_;
  report.skipped = !std::isfinite(report.loss) || !std::isfinite(report.grad_norm);
  if (report.trained_tokens == 0) {
    // Nothing to learn from: momentum and decay must not move the parameters either.
    report.loss = std::numeric_limits<double>::quiet_NaN();
  } else if (report.skipped) {
    // The forward pass is not scaled: a loss that is not finite has another cause.
    report.overflow = std::isfinite(report.loss) && scaler_.overflow();
    if (!report.overflow) ++bad_steps_;
  } else {
    bad_steps_ = 0;
    scaler_.good_step();
    if (config_.grad_clip > 0) clip_gradients(parameters_, report.grad_norm, config_.grad_clip);
    adamw_step(parameters_, config_.adamw, report.lr, ++updates_, runner_.host_threads());
    runner_.set_adapter(parameters_);
  }
  const Runtime::Timing& timing = runner_.runtime().timing();
  report.device_seconds = timing.device_seconds;
  report.host_seconds = timing.host_seconds;
  report.transfer_seconds = timing.transfer_seconds;
  const double end = seconds_now();
  report.optimizer_seconds = end - optimizer_start;
  report.step_seconds = end - start;
  return report;
}

std::map<std::string, Tensor> Trainer::state() const {
  std::map<std::string, Tensor> state;
  for (const Parameter& p : parameters_) {
    state[p.name] = p.value;
    state[p.name + ".adam_m"] = p.m;
    state[p.name + ".adam_v"] = p.v;
  }
  if (scaler_.active()) state["loss_scaler"] = scaler_.state();
  return state;
}

void Trainer::restore(const std::map<std::string, Tensor>& state, int64_t step, int64_t bad_steps,
                      int64_t updates) {
  for (Parameter& p : parameters_) {
    copy_state(state, p.name, p.value);
    copy_state(state, p.name + ".adam_m", p.m);
    copy_state(state, p.name + ".adam_v", p.v);
  }
  if (scaler_.active()) {
    Tensor scaler = scaler_.state();
    copy_state(state, "loss_scaler", scaler);
    scaler_.restore(scaler);
  }
  step_ = step;
  bad_steps_ = bad_steps;
  updates_ = updates;
  runner_.set_adapter(parameters_);
}

}  // namespace npu
