// --drift-every in a training run: measures, logs, and does what --drift-action says.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/run_log.h"
#include "train/drift.h"
#include "train/trainer.h"

namespace npu {

// Checks the ranges of --drift-every, --drift-limit, --drift-action.
void check_drift_options(const Options& options);

class DriftWatch {
 public:
  // `runner` is what the trainer runs on; moving groups to the host replaces it.
  DriftWatch(const Options& options, const ModelConfig& config, const SessionOptions& session,
             const WeightStore& weights, std::unique_ptr<ModelRunner>& runner, Trainer& trainer,
             RunLog& log);

  // After a step: measures on this micro-batch when it is due. False when the run must stop, being
  // out of limit; why() says so. Errors are the devices'.
  Result<bool> after_step(const Batch& batch);
  const std::string& why() const { return why_; }

  // Groups that were moved to the host, for the checkpoint, and moving them again when it resumes.
  std::vector<std::string> moved() const { return {moved_.begin(), moved_.end()}; }
  void move_to_host(const std::vector<std::string>& groups);

 private:
  void log_report(const DriftReport& report, const char* verdict);
  Result<bool> move_until_within(const Batch& batch, double loss_scale);
  // Replaces the runner; the old one is gone before the new one takes device memory.
  void place(const HostGroups& on_host);

  const ModelConfig& config_;
  SessionOptions session_;
  const WeightStore& weights_;
  std::unique_ptr<ModelRunner>& runner_;
  Trainer& trainer_;
  RunLog& log_;
  DriftMonitor monitor_;
  int64_t every_;
  double limit_;
  std::string action_;
  bool quiet_;
  HostGroups usual_, moved_;  // on the host from the start, and since
  std::string why_;
};

}  // namespace npu
