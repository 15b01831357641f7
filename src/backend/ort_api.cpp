// Loads ONNX Runtime's C library and wraps the functions that this program calls.
#include "backend/ort_api.h"

#include <dlfcn.h>

#include <algorithm>

#include "ops/rows.h"

namespace npu {
namespace {

constexpr uint32_t kApiVersion = 14;  // releases from 1.14 on hold every slot named below
constexpr int kLogErrors = 3;         // ORT_LOGGING_LEVEL_ERROR
constexpr int kAllOptimizations = 99;
constexpr int kInvalidArgument = 2;  // OrtErrorCode
constexpr int kArenaAllocator = 1, kDefaultMemory = 0;

struct ApiBase {
  const void* const* (*get_api)(uint32_t);
  const char* (*version)();
};

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  while (text.ends_with(' ')) text.pop_back();
  return text;
}

}  // namespace

// Statuses and type descriptions stay void*: they never leave this file.
struct OrtLibrary::Functions {
  int (*error_code)(const void*);
  const char* (*error_message)(const void*);
  void* (*create_env)(int, const char*, void**);
  void* (*create_session)(const void*, const void*, size_t, const void*, OrtSession**);
  void* (*create_options)(void**);
  void* (*set_log_severity)(void*, int);
  void* (*set_optimization)(void*, int);
  void* (*set_intra_op_threads)(void*, int);
  void* (*set_inter_op_threads)(void*, int);
  void* (*output_count)(const OrtSession*, size_t*);
  void* (*input_type_info)(const OrtSession*, size_t, void**);
  void* (*output_type_info)(const OrtSession*, size_t, void**);
  void* (*output_name)(const OrtSession*, size_t, void*, char**);
  void* (*create_tensor)(const void*, void*, size_t, const int64_t*, size_t, int, OrtValue**);
  void* (*tensor_info)(const void*, const void**);
  void* (*element_type)(const void*, int*);
  void* (*num_dims)(const void*, size_t*);
  void* (*dims)(const void*, int64_t*, size_t);
  void* (*create_cpu_memory)(int, int, void**);
  void* (*allocator_free)(void*, void*);
  void* (*default_allocator)(void**);
  void (*release_env)(void*);
  void (*release_status)(void*);
  void (*release_memory)(void*);
  void (*release_session)(OrtSession*);
  void (*release_value)(OrtValue*);
  void (*release_type_info)(void*);
  void (*release_options)(void*);
  void* (*available_providers)(char***, int*);
  void* (*release_providers)(char**, int);
  void* (*add_config)(void*, const char*, const char*);
  void* (*run)(OrtSession*, const void*, const OrtBinding*);
  void* (*create_binding)(OrtSession*, OrtBinding**);
  void (*release_binding)(OrtBinding*);
  void* (*bind_input)(OrtBinding*, const char*, const OrtValue*);
  void* (*bind_output)(OrtBinding*, const char*, const OrtValue*);
  void* (*register_allocator)(void*, const void*, const void*);
  void* (*append_cuda)(void*, const void*);
  void* (*create_cuda_options)(void**);
  void* (*update_cuda_options)(void*, const char* const*, const char* const*, size_t);
  void (*release_cuda_options)(void*);
  void* (*add_initializers)(void*, const char* const*, const OrtValue* const*, size_t);
  void* (*append_provider)(void*, const char*, const char* const*, const char* const*, size_t);

  explicit Functions(const void* const* table);
};

OrtLibrary::Functions::Functions(const void* const* table) {
  const auto slot = [&](auto& function, size_t index) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(
        const_cast<void*>(table[index]));
  };
  slot(error_code, 1);
  slot(error_message, 2);
  slot(create_env, 3);
  slot(create_session, 8);
  slot(create_options, 10);
  slot(set_log_severity, 22);
  slot(set_optimization, 23);
  slot(set_intra_op_threads, 24);
  slot(set_inter_op_threads, 25);
  slot(output_count, 31);
  slot(input_type_info, 33);
  slot(output_type_info, 34);
  slot(output_name, 37);
  slot(create_tensor, 49);
  slot(tensor_info, 55);
  slot(element_type, 60);
  slot(num_dims, 61);
  slot(dims, 62);
  slot(create_cpu_memory, 69);
  slot(allocator_free, 76);
  slot(default_allocator, 78);
  slot(release_env, 92);
  slot(release_status, 93);
  slot(release_memory, 94);
  slot(release_session, 95);
  slot(release_value, 96);
  slot(release_type_info, 98);
  slot(release_options, 100);
  slot(available_providers, 125);
  slot(release_providers, 126);
  slot(add_config, 130);
  slot(run, 133);
  slot(create_binding, 134);
  slot(release_binding, 135);
  slot(bind_input, 136);
  slot(bind_output, 137);
  slot(register_allocator, 144);
  slot(append_cuda, 204);
  slot(create_cuda_options, 205);
  slot(update_cuda_options, 206);
  slot(release_cuda_options, 208);
  slot(add_initializers, 210);
  slot(append_provider, 216);
}

OrtLibrary::OrtLibrary() = default;
OrtLibrary::~OrtLibrary() {
  if (host_memory_ != nullptr) functions_->release_memory(host_memory_);
  if (env_ != nullptr) functions_->release_env(env_);
}

Result<std::shared_ptr<const OrtLibrary>> OrtLibrary::load(const fs::path& path) {
  const auto unusable = [&](std::string what, std::string got) {
    return Error{ErrorKind::kBadInput, path.string(), std::move(what), std::move(got),
                 kOrtLibrary.hint};
  };
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return unusable("cannot be loaded", reason == nullptr ? "" : reason);
  }
  const auto get_base = reinterpret_cast<const ApiBase* (*)()>(dlsym(handle, "OrtGetApiBase"));
  const ApiBase* base = get_base == nullptr ? nullptr : get_base();
  if (base == nullptr) return unusable("is not ONNX Runtime's library", "without OrtGetApiBase");
  std::shared_ptr<OrtLibrary> library(new OrtLibrary);
  library->version_ = base->version();
  const void* const* table = base->get_api(kApiVersion);
  if (table == nullptr) return unusable("must be release 1.14 or later", library->version_);
  library->functions_ = std::make_unique<Functions>(table);
  if (auto error = library->start()) return *error;
  return std::shared_ptr<const OrtLibrary>(std::move(library));
}

std::optional<Error> OrtLibrary::start() {
  auto error = failure("starting", functions_->create_env(kLogErrors, "npu-lora", &env_));
  if (error) return error;
  error = failure("describing host memory",
                  functions_->create_cpu_memory(kArenaAllocator, kDefaultMemory, &host_memory_));
  if (error) return error;
  void* const status = functions_->register_allocator(env_, host_memory_, nullptr);
  if (status != nullptr && functions_->error_code(status) == kInvalidArgument) {
    // The environment is the process's own, and another OrtLibrary has made its arena already.
    functions_->release_status(status);
    return std::nullopt;
  }
  return failure("making the arena of all sessions", status);
}

std::optional<Error> OrtLibrary::failure(std::string_view action, void* status) const {
  if (status == nullptr) return std::nullopt;
  Error error{ErrorKind::kBadInput, "onnxruntime", std::string(action) + " failed",
              one_line(functions_->error_message(status)), ""};
  functions_->release_status(status);
  return error;
}

Result<std::vector<std::string>> OrtLibrary::providers() const {
  char** names = nullptr;
  int count = 0;
  auto error = failure("listing providers", functions_->available_providers(&names, &count));
  if (error) return *error;
  std::vector<std::string> result(names, names + count);
  if (auto freed = failure("listing providers", functions_->release_providers(names, count))) {
    return *freed;
  }
  return result;
}

std::optional<Error> OrtLibrary::configure(void* options, const OrtSettings& settings) const {
  const auto& f = *functions_;
  std::vector<const char*> keys, values;
  for (const auto& [key, value] : settings.options) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  std::optional<Error> error;
  const auto set = [&](std::string_view action, auto&& call) {
    if (!error) error = failure(action, call());
  };
  set("limiting the log", [&] { return f.set_log_severity(options, kLogErrors); });
  set("setting optimizations", [&] { return f.set_optimization(options, kAllOptimizations); });
  set("setting threads", [&] { return f.set_intra_op_threads(options, settings.threads); });
  set("setting threads", [&] { return f.set_inter_op_threads(options, 1); });
  // Every session has a pool of its own; by default all of them spin between calls.
  set("setting threads",
      [&] { return f.add_config(options, "session.intra_op.allow_spinning", "0"); });
  // Sessions run one at a time: one arena for what lies between their nodes serves all of them.
  set("sharing the arena",
      [&] { return f.add_config(options, "session.use_env_allocators", "1"); });
  if (settings.provider.empty()) {
    // The CPU provider has no options; what is given are entries of the session's own.
    for (const auto& [key, value] : settings.options) {
      set("setting " + key,
          [&, &k = key, &v = value] { return f.add_config(options, k.c_str(), v.c_str()); });
    }
    return error;
  }
  set("switching the fallback to the CPU off",
      [&] { return f.add_config(options, "session.disable_cpu_ep_fallback", "1"); });
  const std::string action = "adding provider " + settings.provider;
  if (settings.provider != "CUDA") {
    set(action, [&] {
      return f.append_provider(options, settings.provider.c_str(), keys.data(), values.data(),
                               keys.size());
    });
    return error;
  }
  void* cuda = nullptr;
  set(action, [&] { return f.create_cuda_options(&cuda); });
  set(action, [&] { return f.update_cuda_options(cuda, keys.data(), values.data(), keys.size()); });
  set(action, [&] { return f.append_cuda(options, cuda); });
  if (cuda != nullptr) f.release_cuda_options(cuda);
  return error;
}

std::optional<Error> OrtLibrary::add_constants(void* options,
                                               const std::vector<OrtConstant>& constants) const {
  if (constants.empty()) return std::nullopt;
  std::vector<OrtHandle<OrtValue>> owners;
  std::vector<const OrtValue*> values;
  std::vector<const char*> names;
  for (const OrtConstant& constant : constants) {
    // Initializers are only read; the interface has no const.
    Result<OrtHandle<OrtValue>> value =
        wrap(constant.value.dtype(), constant.value.shape(),
             const_cast<std::byte*>(constant.value.data()), constant.value.bytes());
    if (!value) return value.error();
    owners.push_back(std::move(value.value()));
    values.push_back(owners.back().get());
    names.push_back(constant.name.c_str());
  }
  return failure("handing over constants",
                 functions_->add_initializers(options, names.data(), values.data(), names.size()));
}

Result<OrtHandle<OrtSession>> OrtLibrary::create_session(
    std::string_view onnx, const OrtSettings& settings,
    const std::vector<OrtConstant>& constants) const {
  void* raw_options = nullptr;
  auto error = failure("making options", functions_->create_options(&raw_options));
  if (error) return *error;
  const OrtHandle<void> options(raw_options, functions_->release_options);
  if (auto refused = configure(options.get(), settings)) return *refused;
  if (auto refused = add_constants(options.get(), constants)) return *refused;
  OrtSession* session = nullptr;
  error = failure("reading the graph", functions_->create_session(env_, onnx.data(), onnx.size(),
                                                                  options.get(), &session));
  if (error) return *error;
  return OrtHandle<OrtSession>(session, functions_->release_session);
}

Result<size_t> OrtLibrary::num_outputs(const OrtSession& session) const {
  size_t count = 0;
  auto error = failure("counting outputs", functions_->output_count(&session, &count));
  if (error) return *error;
  return count;
}

Result<std::string> OrtLibrary::output_name(const OrtSession& session, size_t index) const {
  void* allocator = nullptr;
  char* name = nullptr;
  auto error = failure("reading a name", functions_->default_allocator(&allocator));
  if (!error) {
    error = failure("reading a name", functions_->output_name(&session, index, allocator, &name));
  }
  if (error) return *error;
  std::string text = name;
  if (auto freed = failure("reading a name", functions_->allocator_free(allocator, name))) {
    return *freed;
  }
  return text;
}

Result<OrtPortType> OrtLibrary::port_type(void* type_info) const {
  const OrtHandle<void> owner(type_info, functions_->release_type_info);
  const void* info = nullptr;
  OrtPortType type;
  size_t rank = 0;
  auto error = failure("reading a port", functions_->tensor_info(type_info, &info));
  if (!error && info == nullptr) {
    error = Error{ErrorKind::kBadInput, "onnxruntime", "a port is not a tensor", "", ""};
  }
  if (!error) error = failure("reading a port", functions_->element_type(info, &type.element));
  if (!error) error = failure("reading a port", functions_->num_dims(info, &rank));
  type.shape.resize(rank);
  if (!error) error = failure("reading a port", functions_->dims(info, type.shape.data(), rank));
  if (error) return *error;
  return type;
}

Result<OrtPortType> OrtLibrary::input_type(const OrtSession& session, size_t index) const {
  void* info = nullptr;
  auto error = failure("reading an input", functions_->input_type_info(&session, index, &info));
  if (error) return *error;
  return port_type(info);
}

Result<OrtPortType> OrtLibrary::output_type(const OrtSession& session, size_t index) const {
  void* info = nullptr;
  auto error = failure("reading an output", functions_->output_type_info(&session, index, &info));
  if (error) return *error;
  return port_type(info);
}

Result<OrtHandle<OrtBinding>> OrtLibrary::create_binding(OrtSession& session) const {
  OrtBinding* binding = nullptr;
  auto error = failure("making a binding", functions_->create_binding(&session, &binding));
  if (error) return *error;
  return OrtHandle<OrtBinding>(binding, functions_->release_binding);
}

Result<OrtHandle<OrtValue>> OrtLibrary::wrap(DType dtype, const Shape& shape, void* data,
                                             size_t bytes) const {
  OrtValue* value = nullptr;
  auto error =
      failure("wrapping host memory",
              functions_->create_tensor(host_memory_, data, bytes, shape.data(), shape.size(),
                                        static_cast<int>(ops::onnx_dtype(dtype)), &value));
  if (error) return *error;
  return OrtHandle<OrtValue>(value, functions_->release_value);
}

std::optional<Error> OrtLibrary::bind_input(OrtBinding& binding, const std::string& name,
                                            const OrtValue& value) const {
  return failure("binding " + name, functions_->bind_input(&binding, name.c_str(), &value));
}

std::optional<Error> OrtLibrary::bind_output(OrtBinding& binding, const std::string& name,
                                             const OrtValue& value) const {
  return failure("binding " + name, functions_->bind_output(&binding, name.c_str(), &value));
}

std::optional<Error> OrtLibrary::run(OrtSession& session, OrtBinding& binding) const {
  auto error = failure("running a part", functions_->run(&session, nullptr, &binding));
  if (error) error->kind = ErrorKind::kRetriable;
  return error;
}

}  // namespace npu
