// Watching a run: every so often one micro-batch is run again on a reference, and loss and
// gradients are compared (--drift-every, --drift-limit, --drift-action).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/check.h"
#include "train/placement.h"
#include "train/session.h"

namespace npu {

struct DriftReport {
  Comparison comparison;  // of the run against the reference, gradients worst first
  bool reference_finite = true;
  double seconds = 0;  // that both together took
  // Each gradient within `limit`, the loss within a fifth of it (as check has it: 5 % and 1 %).
  bool within(double limit) const;
  // Further off than any rounding leads: a gradient by half, the loss by a twentieth, or not finite
  // where the reference is.
  bool gross() const;
};

class DriftMonitor {
 public:
  using MakeRunner = std::function<std::unique_ptr<ModelRunner>()>;
  // `make_reference` is called by prepare(), or at the first measurement.
  explicit DriftMonitor(MakeRunner make_reference) : make_reference_(std::move(make_reference)) {}

  void prepare();
  void release() { reference_.reset(); }  // and its memory, until the next measurement

  // Loss and gradients of `batch` with these parameters on both. The parameters are only read;
  // `runner`'s adapter is set from them. Errors are the devices'.
  Result<DriftReport> measure(ModelRunner& runner, std::span<const Parameter> parameters,
                              const Batch& batch, double loss_scale);
  // The same batch and parameters on another placement, against the reference's last result.
  Result<DriftReport> measure_again(ModelRunner& runner, const Batch& batch, double loss_scale);

 private:
  MakeRunner make_reference_;
  std::unique_ptr<ModelRunner> reference_;
  RunResult expected_;
};

// Which groups must leave the device for a run to be within `limit`: one at a time, each time the
// one whose move helps most. `measure` gives what a placement comes to, with these of the
// candidates on the host. Nothing when all on the host do not help either. Errors are measure's.
Result<std::optional<HostGroups>> groups_to_move(
    std::vector<std::string> candidates, double limit,
    const std::function<Result<DriftReport>(const HostGroups&)>& measure);

// The session that a run is compared with: the same graphs with nothing rounded, cut or placed
// otherwise than the model functions say, on `cpu` (for a run on `cpu`: cpu:reference).
SessionOptions reference_session(const SessionOptions& session);

// Placement groups that training runs and that have a part on the device.
std::vector<std::string> groups_on_device(const Plan& plan);

}  // namespace npu
