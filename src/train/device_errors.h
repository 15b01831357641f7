// Going on when the device fails in the middle of a run (--on-device-error host).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "compile/plan.h"

namespace npu {

// Called when a group has moved to the host because the device failed on it.
using OnMove = std::function<void(const std::string& group, const Error& error)>;

// Nothing when the device failed in the last run and the group whose part it failed on has moved to
// the host; else why not: `error` itself when it did not come from a part on the device.
std::optional<Error> move_failed_group(Runtime& runtime, const Error& error, const OnMove& on_move);

// What `attempt` comes to: a training step, an evaluation, a measurement; a Result whose errors
// leave all as it was before. When the device fails, the group whose part it failed on moves to the
// host and the attempt is made again from its start. Each group can move only once.
template <class Attempt>
auto moving_failures(Runtime& runtime, const Attempt& attempt, const OnMove& on_move)
    -> decltype(attempt()) {
  for (;;) {
    auto result = attempt();
    if (result.ok()) return result;
    if (auto error = move_failed_group(runtime, result.error(), on_move)) return std::move(*error);
  }
}

}  // namespace npu
