// The proof product, and the rule for nodes with 16-bit operands.
#include "backend/device_precision.h"

#include <cmath>
#include <vector>

#include "ops/ops.h"

namespace npu {
namespace {

constexpr int64_t kRows = 16, kInner = 64, kColumns = 32;

// y = x·wᵀ with operands that have no short mantissas.
struct Proof {
  Graph graph;
  Tensor x, w;

  explicit Proof(DType dtype);
  // The largest error of the device's result, relative to the largest element.
  Result<double> relative_error(Device& device, Executable& executable, bool freeze) const;
};

Proof::Proof(DType dtype) {
  Builder builder("precision");
  const Value lhs = builder.input("x", {dtype, {kRows, kInner}});
  const Value rhs = builder.input("w", {dtype, {kColumns, kInner}});
  builder.output("y", ops::matmul(lhs, rhs, {.transpose_rhs = true}));
  graph = std::move(builder).build();
  std::vector<float> x_values(kRows * kInner), w_values(kColumns * kInner);
  for (size_t i = 0; i < x_values.size(); ++i) {
    x_values[i] = 1.0f / static_cast<float>(3 + i % 97);
  }
  for (size_t i = 0; i < w_values.size(); ++i) {
    w_values[i] = 1.0f / static_cast<float>(7 + i % 89) - 0.03f;
  }
  x = Tensor::from_f32({kRows, kInner}, x_values).to(dtype);
  w = Tensor::from_f32({kColumns, kInner}, w_values).to(dtype);
}

Result<double> Proof::relative_error(Device& device, Executable& executable, bool freeze) const {
  const Tensor y(x.dtype(), {kRows, kColumns});
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (const Tensor* tensor : {&x, &w, &y}) {
    Result<std::shared_ptr<Buffer>> buffer = device.adopt(*tensor);
    if (!buffer) return buffer.error();
    buffers.push_back(std::move(buffer.value()));
  }
  if (freeze) buffers[1]->freeze();
  Buffer* const inputs[] = {buffers[0].get(), buffers[1].get()};
  Buffer* const outputs[] = {buffers[2].get()};
  const Result<Device::Ticket> ticket = device.submit(executable, inputs, outputs);
  if (!ticket) return ticket.error();
  if (auto failure = device.wait(ticket.value())) return *failure;
  double worst = 0, largest = 0;
  for (int64_t m = 0; m < kRows; ++m) {
    for (int64_t n = 0; n < kColumns; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < kInner; ++k) {
        sum += element(x, m * kInner + k) * element(w, n * kInner + k);
      }
      worst = std::max(worst, std::abs(sum - element(y, m * kColumns + n)));
      largest = std::max(largest, std::abs(sum));
    }
  }
  return worst / largest;
}

}  // namespace

bool is_16_bit(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

std::optional<std::string> foreign_arithmetic(const Graph& graph, NodeId id, DType compute_dtype,
                                              const std::string& backend) {
  const Node& node = graph.node(id);
  if (node.is_input() || node.op->traits.movement) return std::nullopt;
  for (const NodeId in : node.inputs) {
    const DType dtype = graph.node(in).type.dtype;
    const bool native = dtype == compute_dtype || !is_16_bit(dtype);
    const bool widened = node.type.dtype == DType::kF32 && node.op->arity == 1;
    if (!native && !widened) {
      return backend + " computes in " + std::string(dtype_name(compute_dtype)) + ", not in " +
             std::string(dtype_name(dtype));
    }
  }
  return std::nullopt;
}

std::optional<Error> prove_precision(Backend& backend, Device& device, const DeviceOptions& options,
                                     const std::string& hint) {
  const DType dtype = backend.traits().compute_dtype;
  const double bound = dtype == DType::kF32 ? 1e-5 : 5e-3;  // of the largest result
  const Proof proof(dtype);
  const Result<Blob> blob =
      backend.compile(proof.graph, {.threads = options.threads, .vendor = {}});
  if (!blob) return blob.error();
  const Result<std::unique_ptr<Executable>> executable = device.load(blob.value(), proof.graph);
  if (!executable) return executable.error();
  for (const bool frozen : {false, true}) {
    if (frozen && !options.prepack) continue;
    const Result<double> error = proof.relative_error(device, *executable.value(), frozen);
    if (!error) return error.error();
    if (error.value() <= bound) continue;
    return Error{
        ErrorKind::kBadInput, backend.traits().name,
        "must multiply in " + std::string(dtype_name(dtype)) + (frozen ? " by constants too" : ""),
        "a relative error of " + std::to_string(error.value()), hint};
  }
  return std::nullopt;
}

}  // namespace npu
