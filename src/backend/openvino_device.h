// What compiling (openvino.cpp) and running (openvino_device.cpp) on an OpenVINO device share.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "backend/backend.h"
#include "backend/openvino_api.h"

namespace npu {

// What a device computes in, and which of the runtime's properties it knows.
struct OpenVinoTarget {
  std::string_view device;   // "CPU"
  std::string_view backend;  // "openvino:CPU"
  DType compute_dtype;
  std::string_view precision;  // value of INFERENCE_PRECISION_HINT
  bool has_threads;
  double launch_seconds;
};

using OpenVinoHandle = std::shared_ptr<const OpenVinoLibrary>;

// A runtime whose device is set up by `target`, `threads` (0 = the runtime's choice) and the user's
// properties. One for each compile and each device: properties stick to it.
Result<OvHandle<OvCore>> configured_core(
    const OpenVinoLibrary& library, const OpenVinoTarget& target, int threads,
    const std::vector<std::pair<std::string, std::string>>& properties);

// An Error unless the compiled part computes in the precision that was asked for.
std::optional<Error> check_precision(const OpenVinoLibrary& library, const OvCompiled& compiled,
                                     const OpenVinoTarget& target);

Result<std::unique_ptr<Device>> open_openvino_device(OpenVinoHandle library,
                                                     const OpenVinoTarget& target,
                                                     const DeviceOptions& options);

}  // namespace npu
