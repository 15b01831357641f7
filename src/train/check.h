// Comparing loss and gradients of two runs: the device against the CPU, and both against f32.
#pragma once

#include <string>
#include <vector>

#include "train/runner.h"

namespace npu {

struct GradientError {
  std::string name;
  double rel = 0;  // ‖a − b‖₂ / ‖b‖₂
  double cosine = 1;
};

struct RunResult {
  double loss = 0;                    // mean nats over trained tokens
  std::vector<Parameter> parameters;  // with their gradients
};

// Loss and gradients of one batch with these adapter values.
RunResult run_once(ModelRunner& runner, std::vector<Parameter> parameters, const Batch& batch);

struct CheckLimits {
  double loss_rel = 0.01;
  double grad_rel = 0.05;
};

struct Comparison {
  double loss = 0, reference_loss = 0, loss_rel = 0;
  double worst_grad_rel = 0, min_cosine = 1;
  std::vector<GradientError> grads;  // worst first
  bool finite = true;
  bool pass(const CheckLimits& limits) const;
};
Comparison compare_runs(const RunResult& run, const RunResult& reference);

}  // namespace npu
