// AdamW on the host in f32, learning-rate schedules, and gradient clipping; numbers as PyTorch's.
#include "train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace npu {

Schedule parse_schedule(std::string_view name) {
  if (name == "constant") return Schedule::kConstant;
  if (name == "linear") return Schedule::kLinear;
  if (name == "cosine") return Schedule::kCosine;
  fail(ErrorKind::kUsage, "--schedule", "unknown schedule", "'" + std::string(name) + "'",
       "use constant, linear or cosine");
}

double schedule_factor(Schedule schedule, int64_t step, int64_t warmup, int64_t steps) {
  if (step < warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  if (schedule == Schedule::kConstant) return 1.0;
  const double length = static_cast<double>(std::max<int64_t>(1, steps - warmup));
  const double progress = std::min(1.0, static_cast<double>(step - warmup) / length);
  if (schedule == Schedule::kLinear) return 1.0 - progress;
  return 0.5 * (1.0 + std::cos(3.141592653589793 * progress));
}

Parameter make_parameter(std::string name, Tensor value_f32) {
  const Shape shape = value_f32.shape();
  return {std::move(name), std::move(value_f32), Tensor(DType::kF32, shape),
          Tensor(DType::kF32, shape), Tensor(DType::kF32, shape)};
}

double global_grad_norm(std::span<const Parameter> parameters, ThreadPool& pool) {
  std::vector<double> sums(parameters.size());
  pool.run(static_cast<int64_t>(sums.size()), [&](int64_t i) {
    double sum = 0;
    for (const float g : parameters[static_cast<size_t>(i)].grad.values<float>()) {
      sum += static_cast<double>(g) * g;
    }
    sums[static_cast<size_t>(i)] = sum;
  });
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

void scale_gradients(std::span<Parameter> parameters, double factor) {
  for (Parameter& p : parameters) {
    for (float& g : p.grad.mutable_values<float>()) g *= static_cast<float>(factor);
  }
}

void clip_gradients(std::span<Parameter> parameters, double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  if (factor < 1.0) scale_gradients(parameters, factor);
}

void adamw_step(std::span<Parameter> parameters, const AdamWOptions& options, double lr,
                int64_t step, ThreadPool& pool) {
  const double correction1 = 1.0 - std::pow(options.beta1, static_cast<double>(step));
  const double correction2 = 1.0 - std::pow(options.beta2, static_cast<double>(step));
  const float decay = static_cast<float>(1.0 - lr * options.weight_decay);
  const float step_size = static_cast<float>(lr / correction1);
  const float root2 = static_cast<float>(std::sqrt(correction2));
  const float b1 = static_cast<float>(options.beta1), b2 = static_cast<float>(options.beta2);
  const float rest1 = static_cast<float>(1.0 - options.beta1);
  const float rest2 = static_cast<float>(1.0 - options.beta2);
  const float eps = static_cast<float>(options.eps);
  pool.run(static_cast<int64_t>(parameters.size()), [&](int64_t index) {
    Parameter& p = parameters[static_cast<size_t>(index)];
    const auto value = p.value.mutable_values<float>(), m = p.m.mutable_values<float>(),
               v = p.v.mutable_values<float>();
    const auto grad = p.grad.values<float>();
    for (size_t i = 0; i < value.size(); ++i) {
      m[i] = b1 * m[i] + rest1 * grad[i];
      v[i] = b2 * v[i] + rest2 * grad[i] * grad[i];
      value[i] = decay * value[i] - step_size * m[i] / (std::sqrt(v[i]) / root2 + eps);
    }
  });
}

}  // namespace npu
