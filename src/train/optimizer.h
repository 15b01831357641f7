// AdamW on the host in f32, learning-rate schedules, and gradient clipping; numbers as PyTorch's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace npu {

struct AdamWOptions {
  double lr = 2e-4;
  double weight_decay = 0;  // decoupled: p ← p·(1 − lr·weight_decay)
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
};

enum class Schedule { kConstant, kLinear, kCosine };
Schedule parse_schedule(std::string_view name);  // kUsage error on an unknown name

// Factor on lr for step i (from 0) of `steps`, with linear warm-up from 0 over `warmup` steps: the
// formulas of transformers' get_{constant,linear,cosine}_schedule_with_warmup.
double schedule_factor(Schedule schedule, int64_t step, int64_t warmup, int64_t steps);

// One trained tensor: f32 master, gradient of the current step, and AdamW's moments.
struct Parameter {
  std::string name;  // "model.layers.0.self_attn.q_proj.lora_A"
  Tensor value, grad, m, v;
};
Parameter make_parameter(std::string name, Tensor value_f32);

// Root of the sum of all gradients' squares, in double: each parameter's sum, then theirs in order.
double global_grad_norm(std::span<const Parameter> parameters, ThreadPool& pool);

void scale_gradients(std::span<Parameter> parameters, double factor);

// Scales gradients by max_norm / (norm + 1e-6) when that is below 1, as clip_grad_norm_ does.
void clip_gradients(std::span<Parameter> parameters, double norm, double max_norm);

// `step` counts from 1. Zeroes nothing: gradients stay for the caller to inspect.
void adamw_step(std::span<Parameter> parameters, const AdamWOptions& options, double lr,
                int64_t step, ThreadPool& pool);

}  // namespace npu
