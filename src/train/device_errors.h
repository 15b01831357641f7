// Going on when the device fails in the middle of a run (--on-device-error host).
#pragma once

#include <functional>
#include <span>
#include <string>

#include "train/trainer.h"

namespace npu {

// Called when a group has moved to the host because the device failed on it.
using OnMove = std::function<void(const std::string& group, const Error& error)>;

// A step of the trainer. When the device fails, the group whose part it failed on moves to the host
// and the step is done again from its start; parameters are as they were. The error is handed on
// when it did not come from a part on the device: each group can move only once.
Result<StepReport> step_moving_failures(Trainer& trainer, Runtime& runtime,
                                        std::span<const Batch> micro_batches,
                                        const OnMove& on_move);

}  // namespace npu
