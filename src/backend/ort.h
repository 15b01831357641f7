// Backends "ort" (its CPU provider) and "ort:EP": graphs become ONNX bytes, run by ONNX Runtime's C
// library, which is found and loaded at run time.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "base/file.h"

namespace npu {

// `provider` as the library names it ("CUDA", "QNN", "OpenVINO"), empty for the CPU. `library`
// names libonnxruntime.so.*; empty: it is searched for at first use.
std::unique_ptr<Backend> make_ort(const std::string& provider, fs::path library = {});
std::optional<Error> probe_ort(const std::string& provider, const fs::path& library = {});

}  // namespace npu
