// OpenVINO's C library without its headers: how it is loaded, and a thin layer that turns its
// status codes into Errors and its handles into owners.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "backend/library_search.h"

namespace npu {

constexpr VendorLibrary kOpenVinoLibrary = {
    "openvino", "libopenvino_c.so", "openvino/libs", "NPU_LORA_OPENVINO",
    "pip install openvino==2026.4.1, or set NPU_LORA_OPENVINO to libopenvino_c.so.*"};

// Opaque types of the C library.
struct OvCore;
struct OvModel;
struct OvCompiled;
struct OvRequest;
struct OvTensor;
struct OvPort;
template <class T>
using OvHandle = std::unique_ptr<T, void (*)(T*)>;

// Numbers of ov_element_type_e as of 2024.6–2026.4. They have moved between releases, so every
// loaded part compares the types of its ports with these (openvino.cpp).
enum class OvElement : int {
  kBoolean = 1,
  kBF16 = 2,
  kF16 = 3,
  kF32 = 4,
  kI32 = 9,
  kI64 = 10,
  kU8 = 16,
};
OvElement ov_element(DType dtype);

struct OvPortType {
  int element = 0;
  Shape shape;
};

// The loaded library. Methods name the failed action and carry the library's own message. Handles
// must be gone before exit handlers run: freeing a core touches static data of the library.
class OpenVinoLibrary {
 public:
  // The library stays mapped until the process ends: its thread pools do not survive dlclose.
  static Result<std::shared_ptr<const OpenVinoLibrary>> load(const fs::path& path);
  ~OpenVinoLibrary();
  OpenVinoLibrary(const OpenVinoLibrary&) = delete;
  OpenVinoLibrary& operator=(const OpenVinoLibrary&) = delete;

  const std::string& version() const { return version_; }  // "2026.4.1-22045-…"

  Result<OvHandle<OvCore>> create_core() const;
  std::optional<Error> set_property(const OvCore& core, const std::string& device,
                                    const std::string& key, const std::string& value) const;
  Result<std::string> device_property(const OvCore& core, const std::string& device,
                                      const std::string& key) const;

  // `weights` must outlive the model.
  Result<OvHandle<OvModel>> read_model(const OvCore& core, const std::string& xml,
                                       const std::string& weights) const;
  Result<OvHandle<OvCompiled>> compile(const OvCore& core, const OvModel& model,
                                       const std::string& device) const;
  Result<std::string> export_blob(const OvCompiled& compiled) const;
  Result<OvHandle<OvCompiled>> import_blob(const OvCore& core, std::string_view blob,
                                           const std::string& device) const;

  Result<std::string> compiled_property(const OvCompiled& compiled, const std::string& key) const;
  Result<size_t> num_outputs(const OvCompiled& compiled) const;
  Result<OvHandle<OvPort>> input_by_name(const OvCompiled& compiled, const std::string& name) const;
  Result<OvHandle<OvPort>> output_by_index(const OvCompiled& compiled, size_t index) const;
  Result<OvPortType> port_type(const OvPort& port) const;

  Result<OvHandle<OvRequest>> create_request(const OvCompiled& compiled) const;
  // Wraps host memory, which must outlive the tensor.
  Result<OvHandle<OvTensor>> wrap(DType dtype, const Shape& shape, void* data) const;
  std::optional<Error> bind_input(OvRequest& request, const OvPort& port,
                                  const OvTensor& tensor) const;
  std::optional<Error> bind_output(OvRequest& request, size_t index, const OvTensor& tensor) const;
  std::optional<Error> infer(OvRequest& request) const;
  // Copies an output that is not bound into `to`, whose size must be the output's.
  std::optional<Error> copy_output(OvRequest& request, size_t index, std::span<std::byte> to) const;

 private:
  struct Functions;
  OpenVinoLibrary();
  Error error(std::string_view action, int status) const;

  std::unique_ptr<Functions> functions_;
  std::string version_;
};

}  // namespace npu
