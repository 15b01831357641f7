// Loads OpenVINO's C library and wraps the functions that this program calls.
#include "backend/openvino_api.h"

#include <dlfcn.h>

#include <cstring>
#include <utility>

namespace npu {
namespace {

// The library's own structs, by value in its interface.
struct OvShape {
  int64_t rank;
  int64_t* dims;
};
struct OvVersion {
  const char* build;
  const char* description;
};

constexpr std::string_view kNoReason = "the library gave no reason";

// The library's message without line breaks and without the source lines that it was passed through
// ("Exception from src/…/core.cpp:105:" several times over).
std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  constexpr std::string_view kOrigin = "Exception from ";
  while (text.starts_with(kOrigin)) {
    const size_t colon = text.find(": ");
    if (colon == std::string::npos) break;
    text.erase(0, colon + 2);
  }
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

}  // namespace

struct OpenVinoLibrary::Functions {
  int (*get_version)(OvVersion*);
  void (*version_free)(OvVersion*);
  const char* (*last_error)();
  const char* (*status_text)(int);
  void (*free_text)(const char*);
  int (*core_create)(OvCore**);
  void (*core_free)(OvCore*);
  int (*core_set_property)(const OvCore*, const char*, ...);
  int (*core_get_property)(const OvCore*, const char*, const char*, char**);
  int (*read_model)(const OvCore*, const char*, size_t, const OvTensor*, OvModel**);
  void (*model_free)(OvModel*);
  int (*compile)(const OvCore*, const OvModel*, const char*, size_t, OvCompiled**, ...);
  int (*export_model)(const OvCompiled*, const char*);
  int (*import_model)(const OvCore*, const char*, size_t, const char*, OvCompiled**);
  void (*compiled_free)(OvCompiled*);
  int (*compiled_get_property)(const OvCompiled*, const char*, char**);
  int (*outputs_size)(const OvCompiled*, size_t*);
  int (*input_by_name)(const OvCompiled*, const char*, OvPort**);
  int (*output_by_index)(const OvCompiled*, size_t, OvPort**);
  int (*port_element_type)(const OvPort*, int*);
  int (*port_shape)(const OvPort*, OvShape*);
  int (*shape_free)(OvShape*);
  void (*port_free)(OvPort*);
  int (*create_request)(const OvCompiled*, OvRequest**);
  void (*request_free)(OvRequest*);
  int (*tensor_from_host)(int, OvShape, void*, OvTensor**);
  void (*tensor_free)(OvTensor*);
  int (*tensor_data)(const OvTensor*, void**);
  int (*tensor_bytes)(const OvTensor*, size_t*);
  int (*set_input)(OvRequest*, const OvPort*, const OvTensor*);
  int (*set_output)(OvRequest*, size_t, const OvTensor*);
  int (*get_output)(const OvRequest*, size_t, OvTensor**);
  int (*infer)(OvRequest*);

  // Returns the names that the library lacks, comma separated.
  std::string resolve(void* library);
};

std::string OpenVinoLibrary::Functions::resolve(void* library) {
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
  find(get_version, "ov_get_openvino_version");
  find(version_free, "ov_version_free");
  find(last_error, "ov_get_last_err_msg");
  find(status_text, "ov_get_error_info");
  find(free_text, "ov_free");
  find(core_create, "ov_core_create");
  find(core_free, "ov_core_free");
  find(core_set_property, "ov_core_set_property");
  find(core_get_property, "ov_core_get_property");
  find(read_model, "ov_core_read_model_from_memory_buffer");
  find(model_free, "ov_model_free");
  find(compile, "ov_core_compile_model");
  find(export_model, "ov_compiled_model_export_model");
  find(import_model, "ov_core_import_model");
  find(compiled_free, "ov_compiled_model_free");
  find(compiled_get_property, "ov_compiled_model_get_property");
  find(outputs_size, "ov_compiled_model_outputs_size");
  find(input_by_name, "ov_compiled_model_input_by_name");
  find(output_by_index, "ov_compiled_model_output_by_index");
  find(port_element_type, "ov_port_get_element_type");
  find(port_shape, "ov_const_port_get_shape");
  find(shape_free, "ov_shape_free");
  find(port_free, "ov_output_const_port_free");
  find(create_request, "ov_compiled_model_create_infer_request");
  find(request_free, "ov_infer_request_free");
  find(tensor_from_host, "ov_tensor_create_from_host_ptr");
  find(tensor_free, "ov_tensor_free");
  find(tensor_data, "ov_tensor_data");
  find(tensor_bytes, "ov_tensor_get_byte_size");
  find(set_input, "ov_infer_request_set_tensor_by_const_port");
  find(set_output, "ov_infer_request_set_output_tensor_by_index");
  find(get_output, "ov_infer_request_get_output_tensor_by_index");
  find(infer, "ov_infer_request_infer");
  return missing;
}

OvElement ov_element(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return OvElement::kF32;
    case DType::kBF16:
      return OvElement::kBF16;
    case DType::kF16:
      return OvElement::kF16;
    case DType::kI64:
      return OvElement::kI64;
    case DType::kI32:
      return OvElement::kI32;
    case DType::kU8:
      return OvElement::kU8;
    case DType::kPred:
      return OvElement::kBoolean;
  }
  NPU_CHECK(false, "unknown dtype");
}

OpenVinoLibrary::OpenVinoLibrary() : functions_(std::make_unique<Functions>()) {}
OpenVinoLibrary::~OpenVinoLibrary() = default;

Result<std::shared_ptr<const OpenVinoLibrary>> OpenVinoLibrary::load(const fs::path& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return Error{ErrorKind::kBadInput, path.string(), "cannot be loaded",
                 reason == nullptr ? "" : reason, "pip install openvino==2026.4.1"};
  }
  std::shared_ptr<OpenVinoLibrary> library(new OpenVinoLibrary);
  if (std::string missing = library->functions_->resolve(handle); !missing.empty()) {
    return Error{ErrorKind::kBadInput, path.string(), "is not a usable OpenVINO C library",
                 "without " + missing, "pip install openvino==2026.4.1"};
  }
  OvVersion version{};
  if (const int status = library->functions_->get_version(&version); status != 0) {
    return library->error("reading the version", status);
  }
  library->version_ = version.build == nullptr ? "unknown" : version.build;
  library->functions_->version_free(&version);
  return std::shared_ptr<const OpenVinoLibrary>(std::move(library));
}

Error OpenVinoLibrary::error(std::string_view action, int status) const {
  const char* text = functions_->last_error();
  std::string got = text == nullptr || *text == '\0' ? std::string(kNoReason) : one_line(text);
  functions_->free_text(text);
  if (const char* meaning = functions_->status_text(status))
    got = std::string(meaning) + ": " + got;
  return Error{ErrorKind::kBadInput, "openvino", std::string(action) + " failed", got, ""};
}

Result<OvHandle<OvCore>> OpenVinoLibrary::create_core() const {
  OvCore* core = nullptr;
  if (const int status = functions_->core_create(&core); status != 0) {
    return error("starting the runtime", status);
  }
  return OvHandle<OvCore>(core, functions_->core_free);
}

std::optional<Error> OpenVinoLibrary::set_property(const OvCore& core, const std::string& device,
                                                   const std::string& key,
                                                   const std::string& value) const {
  const int status =
      functions_->core_set_property(&core, device.c_str(), key.c_str(), value.c_str());
  if (status != 0) return error("setting " + key + "=" + value + " on " + device, status);
  return std::nullopt;
}

Result<std::string> OpenVinoLibrary::device_property(const OvCore& core, const std::string& device,
                                                     const std::string& key) const {
  char* value = nullptr;
  const int status = functions_->core_get_property(&core, device.c_str(), key.c_str(), &value);
  if (status != 0) return error("reading " + key + " of " + device, status);
  std::string text = value;
  functions_->free_text(value);
  return text;
}

Result<OvHandle<OvModel>> OpenVinoLibrary::read_model(const OvCore& core, const std::string& xml,
                                                      const std::string& weights) const {
  OvHandle<OvTensor> constants(nullptr, functions_->tensor_free);
  if (!weights.empty()) {
    // The library reads the constants only; its interface has no const.
    Result<OvHandle<OvTensor>> wrapped =
        wrap(DType::kU8, {static_cast<int64_t>(weights.size())}, const_cast<char*>(weights.data()));
    if (!wrapped) return wrapped.error();
    constants = std::move(wrapped.value());
  }
  OvModel* model = nullptr;
  const int status =
      functions_->read_model(&core, xml.c_str(), xml.size(), constants.get(), &model);
  if (status != 0) return error("reading the graph", status);
  return OvHandle<OvModel>(model, functions_->model_free);
}

Result<OvHandle<OvCompiled>> OpenVinoLibrary::compile(const OvCore& core, const OvModel& model,
                                                      const std::string& device) const {
  OvCompiled* compiled = nullptr;
  const int status = functions_->compile(&core, &model, device.c_str(), 0, &compiled);
  if (status != 0) return error("compiling for " + device, status);
  return OvHandle<OvCompiled>(compiled, functions_->compiled_free);
}

Result<std::string> OpenVinoLibrary::export_blob(const OvCompiled& compiled) const {
  const TempDir directory;  // the C interface exports to a path only
  const fs::path path = directory.path() / "part.blob";
  if (const int status = functions_->export_model(&compiled, path.c_str()); status != 0) {
    return error("exporting the compiled part", status);
  }
  return read_text(path);
}

Result<OvHandle<OvCompiled>> OpenVinoLibrary::import_blob(const OvCore& core, std::string_view blob,
                                                          const std::string& device) const {
  OvCompiled* compiled = nullptr;
  const int status =
      functions_->import_model(&core, blob.data(), blob.size(), device.c_str(), &compiled);
  if (status != 0) return error("importing a compiled part", status);
  return OvHandle<OvCompiled>(compiled, functions_->compiled_free);
}

Result<std::string> OpenVinoLibrary::compiled_property(const OvCompiled& compiled,
                                                       const std::string& key) const {
  char* value = nullptr;
  const int status = functions_->compiled_get_property(&compiled, key.c_str(), &value);
  if (status != 0) return error("reading " + key + " of a compiled part", status);
  std::string text = value;
  functions_->free_text(value);
  return text;
}

Result<size_t> OpenVinoLibrary::num_outputs(const OvCompiled& compiled) const {
  size_t count = 0;
  const int status = functions_->outputs_size(&compiled, &count);
  if (status != 0) return error("counting outputs", status);
  return count;
}

Result<OvHandle<OvPort>> OpenVinoLibrary::input_by_name(const OvCompiled& compiled,
                                                        const std::string& name) const {
  OvPort* port = nullptr;
  const int status = functions_->input_by_name(&compiled, name.c_str(), &port);
  if (status != 0) return error("finding input " + name, status);
  return OvHandle<OvPort>(port, functions_->port_free);
}

Result<OvHandle<OvPort>> OpenVinoLibrary::output_by_index(const OvCompiled& compiled,
                                                          size_t index) const {
  OvPort* port = nullptr;
  const int status = functions_->output_by_index(&compiled, index, &port);
  if (status != 0) return error("finding output " + std::to_string(index), status);
  return OvHandle<OvPort>(port, functions_->port_free);
}

Result<OvPortType> OpenVinoLibrary::port_type(const OvPort& port) const {
  OvPortType type;
  if (const int status = functions_->port_element_type(&port, &type.element); status != 0) {
    return error("reading the element type of a port", status);
  }
  OvShape shape{};
  if (const int status = functions_->port_shape(&port, &shape); status != 0) {
    return error("reading the shape of a port", status);
  }
  type.shape.assign(shape.dims, shape.dims + shape.rank);
  functions_->shape_free(&shape);
  return type;
}

Result<OvHandle<OvRequest>> OpenVinoLibrary::create_request(const OvCompiled& compiled) const {
  OvRequest* request = nullptr;
  const int status = functions_->create_request(&compiled, &request);
  if (status != 0) return error("creating a request", status);
  return OvHandle<OvRequest>(request, functions_->request_free);
}

Result<OvHandle<OvTensor>> OpenVinoLibrary::wrap(DType dtype, const Shape& shape,
                                                 void* data) const {
  OvTensor* tensor = nullptr;
  const OvShape ov_shape{static_cast<int64_t>(shape.size()), const_cast<int64_t*>(shape.data())};
  const int status =
      functions_->tensor_from_host(static_cast<int>(ov_element(dtype)), ov_shape, data, &tensor);
  if (status != 0) return error("wrapping host memory", status);
  return OvHandle<OvTensor>(tensor, functions_->tensor_free);
}

std::optional<Error> OpenVinoLibrary::bind_input(OvRequest& request, const OvPort& port,
                                                 const OvTensor& tensor) const {
  const int status = functions_->set_input(&request, &port, &tensor);
  if (status != 0) return error("binding an input", status);
  return std::nullopt;
}

std::optional<Error> OpenVinoLibrary::bind_output(OvRequest& request, size_t index,
                                                  const OvTensor& tensor) const {
  const int status = functions_->set_output(&request, index, &tensor);
  if (status != 0) return error("binding output " + std::to_string(index), status);
  return std::nullopt;
}

std::optional<Error> OpenVinoLibrary::infer(OvRequest& request) const {
  const int status = functions_->infer(&request);
  if (status == 0) return std::nullopt;
  Error failure = error("running a part", status);
  failure.kind = ErrorKind::kRetriable;
  return failure;
}

std::optional<Error> OpenVinoLibrary::copy_output(OvRequest& request, size_t index,
                                                  std::span<std::byte> to) const {
  OvTensor* raw = nullptr;
  if (const int status = functions_->get_output(&request, index, &raw); status != 0) {
    return error("reading output " + std::to_string(index), status);
  }
  const OvHandle<OvTensor> tensor(raw, functions_->tensor_free);
  void* data = nullptr;
  size_t bytes = 0;
  int status = functions_->tensor_bytes(tensor.get(), &bytes);
  if (status == 0) status = functions_->tensor_data(tensor.get(), &data);
  if (status != 0) return error("reading output " + std::to_string(index), status);
  if (bytes != to.size()) {
    return Error{
        ErrorKind::kBadInput, "openvino",
        "output " + std::to_string(index) + " must have " + std::to_string(to.size()) + " bytes",
        std::to_string(bytes), ""};
  }
  std::memcpy(to.data(), data, bytes);
  return std::nullopt;
}

}  // namespace npu
