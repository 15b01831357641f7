// The training loop's one step, and the state that a checkpoint must hold to continue bit for bit.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "train/loss_scale.h"
#include "train/optimizer.h"
#include "train/runner.h"

namespace npu {

struct TrainConfig {
  AdamWOptions adamw;
  Schedule schedule = Schedule::kConstant;
  int64_t warmup = 0;
  int64_t steps = 400;
  double grad_clip = 1.0;     // 0 turns clipping off
  int64_t max_bad_steps = 5;  // non-finite steps in a row before the run stops
  LossScaleOptions loss_scale;
};

// One optimizer step as the log shows it.
struct StepReport {
  int64_t step = 0;  // from 1
  double loss = 0;   // mean nats over the step's trained tokens; NaN when there are none
  double lr = 0;
  double grad_norm = 0;        // before clipping
  int64_t trained_tokens = 0;  // tokens with loss
  int64_t tokens = 0;          // tokens that are not padding
  double step_seconds = 0;     // wall time, making the batches included
  // Shares of it; the rest is host work between parts (embedding rows, masks, sums of the loss).
  double device_seconds = 0, host_seconds = 0, transfer_seconds = 0;
  double optimizer_seconds = 0;  // from the gradients' norm to the adapter's upload
  double data_seconds = 0;       // making the batches; the caller, who makes them, adds it
  double cpu_seconds = 0;        // of all threads of this process, likewise
  bool skipped = false;          // loss or gradient was not finite: no update
  double loss_scale = 1;         // that the step's gradients were computed under
  bool overflow = false;         // skipped because the scale was too high; not a bad step
};

class Trainer {
 public:
  // `parameters` are the masters; the runner's adapter is set from them.
  Trainer(ModelRunner& runner, std::vector<Parameter> parameters, TrainConfig config);

  // Accumulates over the micro-batches, normalised by all their trained tokens together, clips, and
  // updates. Device errors are values and leave parameters and step as they were.
  Result<StepReport> train_step(std::span<const Batch> micro_batches);

  int64_t step() const { return step_; }        // steps done, skipped ones included
  int64_t updates() const { return updates_; }  // AdamW's own count: steps that changed parameters
  int64_t bad_steps_in_a_row() const { return bad_steps_; }
  const LossScaler& loss_scaler() const { return scaler_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const TrainConfig& config() const { return config_; }

  // Masters and moments by name ("NAME", "NAME.adam_m", "NAME.adam_v") and, where the loss is
  // scaled, "loss_scaler"; with step, updates and bad_steps_in_a_row that is all that the next step
  // depends on.
  std::map<std::string, Tensor> state() const;
  // Errors: a tensor missing or of another shape (kBadInput UserError).
  void restore(const std::map<std::string, Tensor>& state, int64_t step, int64_t bad_steps,
               int64_t updates);

 private:
  ModelRunner& runner_;
  std::vector<Parameter> parameters_;
  TrainConfig config_;
  LossScaler scaler_;
  int64_t step_ = 0;
  int64_t updates_ = 0;
  int64_t bad_steps_ = 0;
};

}  // namespace npu
