// The proof product, and the rule for nodes with 16-bit operands.
#include "backend/device_precision.h"

#include <cmath>
#include <vector>

#include "ops/ops.h"

namespace npu {

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

std::optional<Error> prove_precision(Backend& backend, Device& device, int threads,
                                     const std::string& hint) {
  constexpr int64_t kRows = 16, kInner = 64, kColumns = 32;
  const DType dtype = backend.traits().compute_dtype;
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

  const Result<Blob> blob = backend.compile(graph, {.threads = threads, .vendor = {}});
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
  return Error{ErrorKind::kBadInput, backend.traits().name,
               "must multiply in " + std::string(dtype_name(dtype)),
               "a relative error of " + std::to_string(worst / largest), hint};
}

}  // namespace npu
