// OpenVINO as a backend: graphs become IR text, the runtime compiles and exports them. What a
// device would do by default is never trusted: the precision is set, read back after every compile
// and import, and proved by a small product when a device is opened.
#include "backend/openvino.h"

#include <array>
#include <cmath>
#include <utility>

#include "backend/graph_writers.h"
#include "backend/openvino_device.h"
#include "ops/ops.h"

namespace npu {
namespace {

constexpr std::array<OpenVinoTarget, 3> kTargets = {{
    // Without the hint, a CPU with bf16 instructions computes f32 graphs in bf16 and a GPU in f16.
    {"CPU", "openvino:CPU", DType::kF32, "f32", true, 10e-6},
    {"GPU", "openvino:GPU", DType::kF32, "f32", false, 50e-6},
    {"NPU", "openvino:NPU", DType::kF16, "f16", false, 100e-6},
}};

bool is_16_bit(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

class OpenVinoBackend : public Backend {
 public:
  OpenVinoBackend(const OpenVinoTarget& target, fs::path library_path)
      : target_(target), library_path_(std::move(library_path)) {
    traits_.name = target.backend;
    traits_.compute_dtype = target.compute_dtype;
    traits_.precision = target.compute_dtype;
    traits_.launch_seconds = target.launch_seconds;
  }

  const Traits& traits() const override { return traits_; }
  bool compiles_in_process() const override { return false; }

  Result<std::string> compiler_version() override;
  std::optional<std::string> unsupported(const Graph& graph, NodeId node) override;
  Result<Blob> compile(const Graph& part, const CompileOptions& options) override;
  Result<std::unique_ptr<Device>> open(const DeviceOptions& options) override;

  // Nothing when the library loads and knows the device.
  std::optional<Error> probe();

 private:
  Result<OpenVinoHandle> library();
  std::optional<Error> prove_precision(Device& device, int threads);

  OpenVinoTarget target_;
  fs::path library_path_;  // empty until found, unless given
  OpenVinoHandle library_;
  Traits traits_;
};

Result<OpenVinoHandle> OpenVinoBackend::library() {
  if (library_ == nullptr) {
    if (library_path_.empty()) {
      Result<fs::path> found = find_openvino_library();
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

std::optional<std::string> OpenVinoBackend::unsupported(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.is_input()) return std::nullopt;
  if (node.op->openvino == nullptr) {
    return std::string(node.op->name) + " has no OpenVINO lowering";
  }
  if (node.op->traits.movement) return std::nullopt;  // exact in every type
  for (const NodeId in : node.inputs) {
    const DType dtype = graph.node(in).type.dtype;
    const bool native = dtype == target_.compute_dtype || !is_16_bit(dtype);
    // Widening is exact; any other use would be computed in another type, without its roundings.
    const bool widened = node.type.dtype == DType::kF32 && node.op->arity == 1;
    if (!native && !widened) {
      return std::string(target_.backend) + " computes in " + std::string(target_.precision) +
             ", not in " + std::string(dtype_name(dtype));
    }
  }
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
  return seal_blob(openvino.version(), exported.value());
}

Result<std::unique_ptr<Device>> OpenVinoBackend::open(const DeviceOptions& options) {
  const Result<OpenVinoHandle> loaded = library();
  if (!loaded) return loaded.error();
  Result<std::unique_ptr<Device>> device =
      open_openvino_device(loaded.value(), target_, options.threads);
  if (!device) return device;
  if (auto failure = prove_precision(*device.value(), options.threads)) return *failure;
  return device;
}

// Runs a product whose operands need all of f32's mantissa. A device that rounds them to 16 bits,
// whatever its properties say, is off by more than the bound.
std::optional<Error> OpenVinoBackend::prove_precision(Device& device, int threads) {
  constexpr int64_t kRows = 16, kInner = 64, kColumns = 32;
  const DType dtype = target_.compute_dtype;
  const double bound = dtype == DType::kF32 ? 1e-5 : 5e-3;  // of the largest result
  Builder builder("precision");
  const Value x = builder.input("x", {dtype, {kRows, kInner}});
  const Value w = builder.input("w", {dtype, {kColumns, kInner}});
  builder.output("y", ops::matmul(x, w, {.transpose_rhs = true}));
  const Graph graph = std::move(builder).build();

  std::vector<float> x_values(kRows * kInner), w_values(kColumns * kInner);
  for (size_t i = 0; i < x_values.size(); ++i) {
    x_values[i] = 1.0f / static_cast<float>(3 + i % 97);
  }
  for (size_t i = 0; i < w_values.size(); ++i) {
    w_values[i] = 1.0f / static_cast<float>(7 + i % 89) - 0.03f;
  }
  Tensor x_tensor = Tensor::from_f32({kRows, kInner}, x_values).to(dtype);
  Tensor w_tensor = Tensor::from_f32({kColumns, kInner}, w_values).to(dtype);
  Tensor y_tensor(dtype, {kRows, kColumns});

  const Result<Blob> blob = compile(graph, {.threads = threads, .vendor = {}});
  if (!blob) return blob.error();
  const Result<std::unique_ptr<Executable>> executable = device.load(blob.value(), graph);
  if (!executable) return executable.error();
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (const Tensor* tensor : {&x_tensor, &w_tensor, &y_tensor}) {
    Result<std::shared_ptr<Buffer>> buffer = device.adopt(*tensor);
    if (!buffer) return buffer.error();
    buffers.push_back(std::move(buffer.value()));
  }
  Buffer* const inputs[] = {buffers[0].get(), buffers[1].get()};
  Buffer* const outputs[] = {buffers[2].get()};
  const Result<Device::Ticket> ticket = device.submit(*executable.value(), inputs, outputs);
  if (!ticket) return ticket.error();
  if (auto failure = device.wait(ticket.value())) return failure;

  double worst = 0, largest = 0;
  for (int64_t m = 0; m < kRows; ++m) {
    for (int64_t n = 0; n < kColumns; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < kInner; ++k) {
        sum += element(x_tensor, m * kInner + k) * element(w_tensor, n * kInner + k);
      }
      worst = std::max(worst, std::abs(sum - element(y_tensor, m * kColumns + n)));
      largest = std::max(largest, std::abs(sum));
    }
  }
  if (worst <= bound * largest) return std::nullopt;
  return Error{ErrorKind::kBadInput, std::string(target_.backend),
               "must multiply in " + std::string(target_.precision),
               "a relative error of " + std::to_string(worst / largest), "use OpenVINO 2026.4.1"};
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
