// --drift-every in a training run: measures, logs, and does what --drift-action says.
#pragma once

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
  // `runner` is what the trainer runs on.
  DriftWatch(const Options& options, const ModelConfig& config, const SessionOptions& session,
             const WeightStore& weights, ModelRunner& runner, Trainer& trainer, RunLog& log);

  // Builds the reference if there is something to measure. Errors are UserErrors.
  void prepare();
  // After a step: measures on this micro-batch when it is due and the step could be one to measure:
  // one that overflowed changed nothing but the loss scale. False when the run must stop, being
  // out of limit; why() says so. Errors are the devices' and leave the placement as it was.
  Result<bool> after_step(const Batch& batch, bool overflow);
  const std::string& why() const { return why_; }

  // Groups that have left the device since the run began, for the checkpoint; a resumed run starts
  // with them on the host. Another cause (--on-device-error) adds its group.
  const HostGroups& moved() const { return moved_; }
  void add_moved(const std::string& group) { moved_.insert(group); }
  void move_to_host(const std::vector<std::string>& groups);

 private:
  void log_report(const DriftReport& report, const char* verdict);
  Result<bool> move_until_within(const Batch& batch, double loss_scale);
  // Of `candidates`, those in `on_host` to the host, the others to the device.
  std::optional<Error> place(const std::vector<std::string>& candidates, const HostGroups& on_host);

  ModelRunner& runner_;
  Trainer& trainer_;
  RunLog& log_;
  DriftMonitor monitor_;
  // Whether to measure after this step; what could not be is made up for by the next.
  bool due(bool possible);
  // What is done about this report: pass, stop, host or warn.
  std::string verdict(const DriftReport& report) const;

  bool once_;  // --drift-every auto: one measurement, at the first step that can be measured
  int64_t every_;
  bool pending_;
  double limit_;
  std::string action_;
  HostGroups moved_;
  std::string why_;
};

}  // namespace npu
