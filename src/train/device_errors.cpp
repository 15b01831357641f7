// Each failure takes one group off the device, so there are at most as many as groups.
#include "train/device_errors.h"

namespace npu {

std::optional<Error> move_failed_group(Runtime& runtime, const Error& error,
                                       const OnMove& on_move) {
  const std::string group = runtime.failed_group();
  if (group.empty()) return error;
  if (runtime.place_group(group, true, "device error: " + error.text())) return error;
  on_move(group, error);
  return std::nullopt;
}

}  // namespace npu
