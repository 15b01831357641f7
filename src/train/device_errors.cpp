// Each failure takes one group off the device, so there are at most as many as groups.
#include "train/device_errors.h"

namespace npu {

std::optional<Error> move_failed_group(Runtime& runtime, const Error& error,
                                       const OnMove& on_move) {
  const std::string group = runtime.failed_group();
  if (group.empty()) return error;
  if (const auto refused = runtime.place_group(group, true, "device error: " + error.text())) {
    Error both = error;
    both.what += "; " + refused->where + " " + refused->what;
    both.hint = refused->hint;
    return both;
  }
  on_move(group, error);
  return std::nullopt;
}

}  // namespace npu
