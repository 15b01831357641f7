// ONNX Runtime as a backend. A blob is the part's ONNX text: the runtime optimizes it again at
// load, in a few hundredths of a second, and has no format that outlives a release.
#include "backend/ort.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "backend/device_precision.h"
#include "backend/frozen_inputs.h"
#include "backend/graph_writers.h"
#include "backend/host_device.h"
#include "backend/ort_api.h"
#include "backend/sealed_blob.h"
#include "ops/rows.h"

namespace npu {
namespace {

using Library = std::shared_ptr<const OrtLibrary>;

constexpr size_t kAlignment = 64;  // of vector loads
constexpr double kCpuLaunchSeconds = 4e-6, kProviderLaunchSeconds = 50e-6;
constexpr std::string_view kBlobKind = "onnxruntime";
// Raised when write_onnx() says the same in other operations: cached blobs are then made anew.
constexpr const char* kOnnxForm = "2";

// One input or output of a session, with the memory that it is bound to at present.
struct Port {
  std::string name;
  TensorType type;
  size_t position = 0;  // among the inputs or outputs of the part
  std::byte* memory = nullptr;
  OrtHandle<OrtValue> value = {nullptr, [](OrtValue*) {}};
};

// A session of a part, with all inputs bound or some of them constant.
struct OrtCode {
  OrtHandle<OrtSession> session;
  OrtHandle<OrtBinding> binding;  // before the session in destruction
  std::vector<Port> inputs = {}, outputs = {};
};

using OrtExecutable = PrepackExecutable<OrtCode>;

std::optional<Error> check_port(const Result<OrtPortType>& found, const TensorType& type,
                                const std::string& name) {
  if (!found) return found.error();
  const OrtPortType& port = found.value();
  if (port.element == ops::onnx_dtype(type.dtype) && port.shape == type.shape) return std::nullopt;
  return Error{ErrorKind::kBadInput, "onnxruntime", "port \"" + name + "\" must be " + type.text(),
               "element type " + std::to_string(port.element) + ", shape " + shape_text(port.shape),
               ""};
}

class OrtDevice : public HostDevice {
 public:
  OrtDevice(Library library, OrtSettings settings, bool prepack)
      : HostDevice(kAlignment),
        library_(std::move(library)),
        settings_(std::move(settings)),
        prepack_(prepack) {}

  Result<std::unique_ptr<Executable>> load(const Blob& blob, const Graph& part) override;
  Result<Ticket> submit(Executable& executable, std::span<Buffer* const> inputs,
                        std::span<Buffer* const> outputs) override;

 private:
  Result<std::unique_ptr<OrtCode>> make_code(const Graph& part, std::string_view onnx,
                                             const ConstantInputs& constants) const;
  std::optional<Error> add_ports(OrtCode& code, const Graph& part,
                                 const ConstantInputs& constants) const;
  using Bind = std::optional<Error> (OrtLibrary::*)(OrtBinding&, const std::string&,
                                                    const OrtValue&) const;
  // Binds the port to the buffer; nothing to do while it stays the same from call to call.
  std::optional<Error> retarget(OrtCode& code, Port& port, Buffer& buffer, Bind bind) const;

  Library library_;
  OrtSettings settings_;
  bool prepack_;
  Ticket last_ticket_ = 0;
};

Result<std::unique_ptr<OrtCode>> OrtDevice::make_code(const Graph& part, std::string_view onnx,
                                                      const ConstantInputs& constants) const {
  std::vector<OrtConstant> initializers;
  for (const auto& [position, value] : constants) {
    initializers.push_back({part.node(part.inputs()[position]).name, value});
  }
  Result<OrtHandle<OrtSession>> session = library_->create_session(onnx, settings_, initializers);
  if (!session) return session.error();
  Result<OrtHandle<OrtBinding>> binding = library_->create_binding(*session.value());
  if (!binding) return binding.error();
  std::unique_ptr<OrtCode> code(
      new OrtCode{std::move(session.value()), std::move(binding.value())});
  if (auto failure = add_ports(*code, part, constants)) return *failure;
  return code;
}

Result<std::unique_ptr<Executable>> OrtDevice::load(const Blob& blob, const Graph& part) {
  const Result<std::string_view> onnx = unseal_blob(kBlobKind, library_->version(), blob);
  if (!onnx) return onnx.error();
  Result<std::unique_ptr<OrtCode>> code = make_code(part, onnx.value(), {});
  if (!code) return code.error();
  return std::unique_ptr<Executable>(
      std::make_unique<OrtExecutable>(part, product_weights(part), std::move(code.value())));
}

std::optional<Error> OrtDevice::add_ports(OrtCode& code, const Graph& part,
                                          const ConstantInputs& constants) const {
  const OrtSession& session = *code.session;
  for (size_t i = 0; i < part.inputs().size(); ++i) {
    if (constants.contains(i)) continue;
    const Node& node = part.node(part.inputs()[i]);
    const auto found = library_->input_type(session, code.inputs.size());
    if (auto failure = check_port(found, node.type, node.name)) return failure;
    code.inputs.push_back({node.name, node.type, i});
  }
  const Result<size_t> num_outputs = library_->num_outputs(session);
  if (!num_outputs) return num_outputs.error();
  if (num_outputs.value() != part.outputs().size()) {
    return Error{ErrorKind::kBadInput, "onnxruntime blob",
                 "must have " + std::to_string(part.outputs().size()) + " outputs",
                 std::to_string(num_outputs.value()), "clear the compile cache"};
  }
  for (size_t i = 0; i < part.outputs().size(); ++i) {
    const TensorType& type = part.node(part.outputs()[i].node).type;
    // The writer renames outputs that are called like an input.
    Result<std::string> name = library_->output_name(session, i);
    if (!name) return name.error();
    auto failure = check_port(library_->output_type(session, i), type, part.outputs()[i].name);
    if (failure) return failure;
    code.outputs.push_back({std::move(name.value()), type, i});
  }
  return std::nullopt;
}

std::optional<Error> OrtDevice::retarget(OrtCode& code, Port& port, Buffer& buffer,
                                         Bind bind) const {
  const size_t bytes = static_cast<size_t>(port.type.bytes());
  if (buffer.bytes() < bytes) {
    return Error{ErrorKind::kBadInput, "onnxruntime",
                 port.name + " needs " + std::to_string(bytes) + " bytes",
                 "a buffer of " + std::to_string(buffer.bytes()), ""};
  }
  if (port.memory == buffer.host_pointer()) return std::nullopt;
  Result<OrtHandle<OrtValue>> value =
      library_->wrap(port.type.dtype, port.type.shape, buffer.host_pointer(), bytes);
  if (!value) return value.error();
  port.memory = nullptr;  // unknown again should binding fail
  if (auto failure = ((*library_).*bind)(*code.binding, port.name, *value.value())) return failure;
  port.value = std::move(value.value());
  port.memory = buffer.host_pointer();
  return std::nullopt;
}

Result<Device::Ticket> OrtDevice::submit(Executable& executable, std::span<Buffer* const> inputs,
                                         std::span<Buffer* const> outputs) {
  auto& loaded = dynamic_cast<OrtExecutable&>(executable);
  NPU_CHECK(inputs.size() == loaded.part.inputs().size() &&
                outputs.size() == loaded.part.outputs().size(),
            "a call binds every input and output of its part");
  const Result<OrtCode*> chosen =
      loaded.code_for(inputs, prepack_, [&](const ConstantInputs& constants) {
        return make_code(loaded.part, write_onnx(loaded.part, constants), constants);
      });
  if (!chosen) return chosen.error();
  OrtCode& code = *chosen.value();
  for (Port& port : code.inputs) {
    auto failure = retarget(code, port, *inputs[port.position], &OrtLibrary::bind_input);
    if (failure) return *failure;
  }
  for (Port& port : code.outputs) {
    auto failure = retarget(code, port, *outputs[port.position], &OrtLibrary::bind_output);
    if (failure) return *failure;
  }
  if (auto failure = library_->run(*code.session, *code.binding)) return *failure;
  return ++last_ticket_;
}

class OrtBackend : public Backend {
 public:
  OrtBackend(std::string provider, fs::path library_path)
      : provider_(std::move(provider)), library_path_(std::move(library_path)) {
    traits_.name = provider_.empty() ? "ort" : "ort:" + provider_;
    traits_.host_cpu = provider_.empty();
    traits_.prepack = provider_.empty() ? Prepack::kOnRequest : Prepack::kNever;
    traits_.prepack_bytes = 4;
    traits_.launch_seconds = provider_.empty() ? kCpuLaunchSeconds : kProviderLaunchSeconds;
  }

  const Traits& traits() const override { return traits_; }
  bool compiles_in_process() const override { return false; }

  Result<std::string> compiler_version() override {
    const Result<Library> loaded = library();
    if (!loaded) return loaded.error();
    return "onnxruntime " + loaded.value()->version() +
           (provider_.empty() ? " CPU" : " " + provider_) + ", ONNX form " + kOnnxForm;
  }

  std::optional<std::string> unsupported(const Graph& graph, NodeId id,
                                         const CompileOptions&) override {
    const Node& node = graph.node(id);
    if (!node.is_input() && node.op->onnx == nullptr) {
      return std::string(node.op->name) + " has no ONNX lowering";
    }
    return foreign_arithmetic(graph, id, traits_.compute_dtype, traits_.name);
  }

  // A session is made to learn whether the runtime takes the part, then thrown away.
  Result<Blob> compile(const Graph& part, const CompileOptions& options) override {
    const Result<Library> loaded = library();
    if (!loaded) return loaded.error();
    const std::string onnx = write_onnx(part);
    OrtSettings settings = settings_for(options.threads);
    settings.options = options.vendor;
    const auto session = loaded.value()->create_session(onnx, settings);
    if (!session) return session.error();
    return seal_blob(kBlobKind, loaded.value()->version(), onnx);
  }

  Result<std::unique_ptr<Device>> open(const DeviceOptions& options) override {
    const Result<Library> loaded = library();
    if (!loaded) return loaded.error();
    if (auto absent = probe()) return *absent;
    std::unique_ptr<Device> device =
        std::make_unique<OrtDevice>(loaded.value(), settings_for(options.threads), options.prepack);
    // Providers may compute in half the width (TF32, fp16) without being asked.
    auto failure = prove_precision(*this, *device, options,
                                   "use another provider, or its options for full precision");
    if (failure) return *failure;
    return device;
  }

  // Nothing when the library loads and has the provider.
  std::optional<Error> probe() {
    const Result<Library> loaded = library();
    if (!loaded) return loaded.error();
    const auto providers = loaded.value()->providers();
    if (!providers) return providers.error();
    const std::string wanted =
        (provider_.empty() ? std::string("CPU") : provider_) + "ExecutionProvider";
    std::string all;
    for (const std::string& name : providers.value()) {
      if (name == wanted) return std::nullopt;
      all += (all.empty() ? "" : ", ") + name;
    }
    return Error{ErrorKind::kBadInput, traits_.name,
                 "ONNX Runtime " + loaded.value()->version() + " has no " + wanted, all,
                 "install the package that brings this provider"};
  }

 private:
  Result<Library> library() {
    if (library_ == nullptr) {
      if (library_path_.empty()) {
        Result<fs::path> found = find_library(kOrtLibrary);
        if (!found) return found.error();
        library_path_ = std::move(found.value());
      }
      Result<Library> loaded = OrtLibrary::load(library_path_);
      if (!loaded) return loaded;
      library_ = std::move(loaded.value());
    }
    return library_;
  }

  OrtSettings settings_for(int threads) const {
    OrtSettings settings;
    settings.provider = provider_;
    // Its own default pins a thread to each core, which two sessions at work would share.
    settings.threads =
        threads > 0 ? threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    return settings;
  }

  std::string provider_;
  fs::path library_path_;  // empty until found, unless given
  Library library_;
  Traits traits_;
};

}  // namespace

std::unique_ptr<Backend> make_ort(const std::string& provider, fs::path library) {
  return std::make_unique<OrtBackend>(provider, std::move(library));
}

std::optional<Error> probe_ort(const std::string& provider, const fs::path& library) {
  return OrtBackend(provider, library).probe();
}

}  // namespace npu
