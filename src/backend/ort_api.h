// ONNX Runtime's C interface without its headers: a table of functions that only ever grows, by
// position. This layer names the few that are used and turns statuses into Errors and handles into
// owners.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/library_search.h"

namespace npu {

constexpr VendorLibrary kOrtLibrary = {
    "onnxruntime", "libonnxruntime.so", "onnxruntime/capi", "NPU_LORA_ONNXRUNTIME",
    "pip install onnxruntime==1.32.0, or set NPU_LORA_ONNXRUNTIME to libonnxruntime.so.*"};

// Opaque types of the library.
struct OrtSession;
struct OrtBinding;
struct OrtValue;
template <class T>
using OrtHandle = std::unique_ptr<T, void (*)(T*)>;

struct OrtSettings {
  std::string provider;  // "" is the CPU; else "CUDA", "QNN", … as the library names them
  int threads = 0;       // of the CPU provider; 0 = all cores
  std::vector<std::pair<std::string, std::string>> options;  // of the provider, verbatim
};

// An initializer in the caller's memory, which must outlive the session.
struct OrtConstant {
  std::string name;
  Tensor value;
};

struct OrtPortType {
  int element = 0;  // TensorProto's numbers, as in ops::onnx_dtype
  Shape shape;
};

// The loaded library with its one environment. Errors carry the library's own message.
class OrtLibrary {
 public:
  // The library stays mapped until the process ends: its threads do not survive dlclose.
  static Result<std::shared_ptr<const OrtLibrary>> load(const fs::path& path);
  ~OrtLibrary();
  OrtLibrary(const OrtLibrary&) = delete;
  OrtLibrary& operator=(const OrtLibrary&) = delete;

  const std::string& version() const { return version_; }  // "1.31.1"
  Result<std::vector<std::string>> providers() const;      // "CPUExecutionProvider", …

  // A session over ONNX bytes, which are copied. Threads sleep between calls. With a provider, a
  // node that it can't run is an Error: the library's fallback to the CPU is switched off.
  Result<OrtHandle<OrtSession>> create_session(
      std::string_view onnx, const OrtSettings& settings,
      const std::vector<OrtConstant>& constants = {}) const;
  Result<size_t> num_outputs(const OrtSession& session) const;
  Result<std::string> output_name(const OrtSession& session, size_t index) const;
  Result<OrtPortType> input_type(const OrtSession& session, size_t index) const;
  Result<OrtPortType> output_type(const OrtSession& session, size_t index) const;

  Result<OrtHandle<OrtBinding>> create_binding(OrtSession& session) const;
  // Wraps host memory, which must outlive the value.
  Result<OrtHandle<OrtValue>> wrap(DType dtype, const Shape& shape, void* data, size_t bytes) const;
  std::optional<Error> bind_input(OrtBinding& binding, const std::string& name,
                                  const OrtValue& value) const;
  std::optional<Error> bind_output(OrtBinding& binding, const std::string& name,
                                   const OrtValue& value) const;
  std::optional<Error> run(OrtSession& session, OrtBinding& binding) const;

 private:
  struct Functions;
  OrtLibrary();
  std::optional<Error> start();
  // Frees the status; nothing when it says success.
  std::optional<Error> failure(std::string_view action, void* status) const;
  std::optional<Error> configure(void* options, const OrtSettings& settings) const;
  std::optional<Error> add_constants(void* options,
                                     const std::vector<OrtConstant>& constants) const;
  Result<OrtPortType> port_type(void* type_info) const;

  std::unique_ptr<Functions> functions_;
  void* env_ = nullptr;
  void* host_memory_ = nullptr;
  std::string version_;
};

}  // namespace npu
