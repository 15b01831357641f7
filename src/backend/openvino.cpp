// OpenVINO as a backend: graphs become IR text, the runtime compiles and exports them. What a
// device would do by default is never trusted: the precision is set, read back after every compile
// and import, and proved by a small product when a device is opened.
#include "backend/openvino.h"

#include <array>
#include <utility>

#include "backend/device_precision.h"
#include "backend/graph_writers.h"
#include "backend/openvino_device.h"
#include "backend/sealed_blob.h"

namespace npu {
namespace {

constexpr std::array<OpenVinoTarget, 3> kTargets = {{
    // Without the hint, a CPU with bf16 instructions computes f32 graphs in bf16 and a GPU in f16.
    {"CPU", "openvino:CPU", DType::kF32, "f32", true, 10e-6},
    {"GPU", "openvino:GPU", DType::kF32, "f32", false, 50e-6},
    {"NPU", "openvino:NPU", DType::kF16, "f16", false, 100e-6},
}};

class OpenVinoBackend : public Backend {
 public:
  OpenVinoBackend(const OpenVinoTarget& target, fs::path library_path)
      : target_(target), library_path_(std::move(library_path)) {
    traits_.name = target.backend;
    traits_.host_cpu = target.device == "CPU";
    traits_.prepack = traits_.host_cpu ? Prepack::kOnRequest : Prepack::kNever;
    traits_.prepack_bytes = 8;  // the constant and the form that its products read
    traits_.compute_dtype = target.compute_dtype;
    traits_.precision = target.compute_dtype;
    traits_.launch_seconds = target.launch_seconds;
  }

  const Traits& traits() const override { return traits_; }
  bool compiles_in_process() const override { return false; }

  Result<std::string> compiler_version() override;
  std::optional<std::string> unsupported(const Graph& graph, NodeId node,
                                         const CompileOptions&) override;
  Result<Blob> compile(const Graph& part, const CompileOptions& options) override;
  Result<std::unique_ptr<Device>> open(const DeviceOptions& options) override;

  // Nothing when the library loads and knows the device.
  std::optional<Error> probe();

 private:
  Result<OpenVinoHandle> library();

  OpenVinoTarget target_;
  fs::path library_path_;  // empty until found, unless given
  OpenVinoHandle library_;
  Traits traits_;
};

Result<OpenVinoHandle> OpenVinoBackend::library() {
  if (library_ == nullptr) {
    if (library_path_.empty()) {
      Result<fs::path> found = find_library(kOpenVinoLibrary);
      if (!found) return found.error();
      library_path_ = std::move(found.value());
    }
    Result<OpenVinoHandle> loaded = OpenVinoLibrary::load(library_path_);
    if (!loaded) return loaded;
    library_ = std::move(loaded.value());
  }
  return library_;
}

Result<std::string> OpenVinoBackend::compiler_version() {
  const Result<OpenVinoHandle> loaded = library();
  if (!loaded) return loaded.error();
  // Its plugin compiles nothing without the driver, and would blame every graph.
  if (auto absent = probe()) return *absent;
  return "openvino " + loaded.value()->version() + " " + std::string(target_.device);
}

std::optional<Error> OpenVinoBackend::probe() {
  const Result<OpenVinoHandle> loaded = library();
  if (!loaded) return loaded.error();
  const Result<OvHandle<OvCore>> core = loaded.value()->create_core();
  if (!core) return core.error();
  const Result<std::string> name = loaded.value()->device_property(
      *core.value(), std::string(target_.device), "FULL_DEVICE_NAME");
  if (name) return std::nullopt;
  Error absent = name.error();
  absent.where = target_.backend;
  absent.what = "OpenVINO " + loaded.value()->version() + " finds no such device";
  absent.hint = "install the device's driver";
  return absent;
}

std::optional<std::string> OpenVinoBackend::unsupported(const Graph& graph, NodeId id,
                                                        const CompileOptions&) {
  const Node& node = graph.node(id);
  if (node.is_input()) return std::nullopt;
  if (node.op->openvino == nullptr) {
    return std::string(node.op->name) + " has no OpenVINO lowering";
  }
  if (auto reason = foreign_arithmetic(graph, id, target_.compute_dtype, traits_.name)) {
    return reason;
  }
  if (node.op->traits.movement) return std::nullopt;
  if (!is_16_bit(node.type.dtype) || node.type.dtype == target_.compute_dtype) return std::nullopt;
  for (const Node& user : graph.nodes()) {
    for (const NodeId in : user.inputs) {
      if (in != id) continue;
      return std::string(target_.backend) + " drops the rounding to " +
             std::string(dtype_name(node.type.dtype)) + " of values that are used further";
    }
  }
  return std::nullopt;
}

Result<Blob> OpenVinoBackend::compile(const Graph& part, const CompileOptions& options) {
  const Result<OpenVinoHandle> loaded = library();
  if (!loaded) return loaded.error();
  const OpenVinoLibrary& openvino = *loaded.value();
  const Result<OvHandle<OvCore>> core =
      configured_core(openvino, target_, options.threads, options.vendor);
  if (!core) return core.error();
  std::string weights;
  const std::string xml = write_openvino_ir(part, &weights);
  const Result<OvHandle<OvModel>> model = openvino.read_model(*core.value(), xml, weights);
  if (!model) return model.error();
  const Result<OvHandle<OvCompiled>> compiled =
      openvino.compile(*core.value(), *model.value(), std::string(target_.device));
  if (!compiled) return compiled.error();
  if (auto failure = check_precision(openvino, *compiled.value(), target_)) return *failure;
  const Result<std::string> exported = openvino.export_blob(*compiled.value());
  if (!exported) return exported.error();
  return seal_blob("openvino", openvino.version(), exported.value());
}

Result<std::unique_ptr<Device>> OpenVinoBackend::open(const DeviceOptions& options) {
  const Result<OpenVinoHandle> loaded = library();
  if (!loaded) return loaded.error();
  Result<std::unique_ptr<Device>> device = open_openvino_device(loaded.value(), target_, options);
  if (!device) return device;
  auto failure = prove_precision(*this, *device.value(), options, "use OpenVINO 2026.4.1");
  if (failure) return *failure;
  return device;
}

std::unique_ptr<OpenVinoBackend> make(OpenVinoDevice device, fs::path library) {
  return std::make_unique<OpenVinoBackend>(kTargets[static_cast<size_t>(device)],
                                           std::move(library));
}

}  // namespace

std::unique_ptr<Backend> make_openvino(OpenVinoDevice device, fs::path library) {
  return make(device, std::move(library));
}

std::optional<Error> probe_openvino(OpenVinoDevice device, const fs::path& library) {
  return make(device, library)->probe();
}

}  // namespace npu
