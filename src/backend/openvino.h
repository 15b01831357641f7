// Backends "openvino:CPU", "openvino:GPU" and "openvino:NPU": graphs become IR text, compiled and
// run by OpenVINO's C library, which is found and loaded at run time
// (docs/decisions/001-openvino-by-dlopen.md).
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "backend/backend.h"
#include "base/file.h"

namespace npu {

enum class OpenVinoDevice { kCpu, kGpu, kNpu };

// `library` names libopenvino_c.so.*; empty: it is searched for at first use.
std::unique_ptr<Backend> make_openvino(OpenVinoDevice device, fs::path library = {});
std::optional<Error> probe_openvino(OpenVinoDevice device, const fs::path& library = {});

// Rows for backend_entries(), whose functions take no arguments.
template <OpenVinoDevice device>
std::unique_ptr<Backend> make_openvino_entry() {
  return make_openvino(device);
}
template <OpenVinoDevice device>
std::optional<Error> probe_openvino_entry() {
  return probe_openvino(device);
}

}  // namespace npu
