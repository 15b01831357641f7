// Each failure takes one group off the device, so there are at most as many as groups.
#include "train/device_errors.h"

namespace npu {

Result<StepReport> step_moving_failures(Trainer& trainer, Runtime& runtime,
                                        std::span<const Batch> micro_batches,
                                        const OnMove& on_move) {
  for (;;) {
    Result<StepReport> report = trainer.train_step(micro_batches);
    const std::string group = runtime.failed_group();
    if (report.ok() || group.empty()) return report;
    if (runtime.place_group(group, true, "device error: " + report.error().text())) return report;
    on_move(group, report.error());
  }
}

}  // namespace npu
