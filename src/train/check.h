// Comparing loss and gradients of two runs: the device against the CPU, and both against f32.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "train/runner.h"

namespace npu {

struct GradientError {
  std::string name;
  double rel = 0;  // ‖a − b‖₂ / ‖b‖₂; infinite where a value is not finite
  double cosine = 1;
  bool finite = true;  // of the run, not of the reference
};

struct RunResult {
  double loss = 0;                    // mean nats over trained tokens
  std::vector<Parameter> parameters;  // with their gradients
};

bool all_finite(const Tensor& gradient);  // f32

// Loss and gradients of one batch with these adapter values. What the device fails with is thrown.
RunResult run_once(ModelRunner& runner, std::vector<Parameter> parameters, const Batch& batch);

struct CheckLimits {
  double loss_rel = 0.01;
  double grad_rel = 0.05;
};

struct Comparison {
  double loss = 0, reference_loss = 0;
  double loss_rel = 0;  // infinite where a loss is not finite or only the reference is 0
  double worst_grad_rel = 0, min_cosine = 1;
  std::vector<GradientError> grads;     // worst first
  bool finite = true;                   // both sides
  std::vector<std::string> not_finite;  // "loss" and gradients of the run with a NaN or infinity

  bool pass(const CheckLimits& limits) const;
  // The larger of loss and gradient error in units of its limit: above 1 fails, infinite when a
  // value is not finite.
  double severity(const CheckLimits& limits) const;
};
Comparison compare_runs(const RunResult& run, const RunResult& reference);

// The worst of each figure over several inputs; the losses are those of the worst loss_rel.
Comparison worst_of(std::span<const Comparison> comparisons);

// What a placement group has to do with an error: the comparison when it alone moves to the host.
struct GroupBlame {
  std::string group;
  Comparison on_host;
};
// Moves one group after the other; the first of the result is the one whose move helps most.
std::vector<GroupBlame> blame_groups(
    std::span<const std::string> groups,
    const std::function<Comparison(const std::string& group)>& with_group_on_host,
    const CheckLimits& limits);

// Where the groups of a plan run: all parts on the device, all on the host, or some of each.
struct GroupPlacement {
  std::string group;
  size_t parts = 0, host_parts = 0;
  std::vector<std::string> host_reasons;  // distinct ones
};
std::vector<GroupPlacement> placement_of(const Plan& plan);

}  // namespace npu
