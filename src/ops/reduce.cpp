// Reductions; reduced dimensions stay with size 1.
#include <limits>
#include <vector>

#include "ops/kernel.h"
#include "ops/rows.h"

namespace npu::ops {
namespace {

using Operands = std::span<const Tensor>;
using Values = std::vector<Value>;

constexpr AttrSpec kReduceAttrs[] = {{"axes", AttrKind::kIntegers}};

Result<TensorType> infer_reduce(std::span<const TensorType> in, const Attrs& attrs) {
  if (!is_float(in[0].dtype)) return broken("the operand is of a float type");
  const std::vector<int64_t>& axes = attrs.integers("axes");
  if (axes.empty()) return broken("there is at least one axis");
  TensorType out = in[0];
  int64_t last = -1;
  for (const int64_t axis : axes) {
    if (axis <= last || axis >= static_cast<int64_t>(out.shape.size())) {
      return broken("axes are dimensions of the operand in rising order");
    }
    out.shape[static_cast<size_t>(axis)] = 1;
    last = axis;
  }
  return out;
}

// Calls combine(slot of the result, element) for every element in row-major order.
template <class Combine>
void reduce_elements(const Tensor& in, const Shape& out, const float* values, Combine&& combine) {
  // The result's strides over the operand's shape: 0 along the reduced axes.
  const Strides to = broadcast_strides(out, in.shape());
  const int64_t step = inner_stride(to);
  for_each_row<1>(in.shape(), {to}, [&](const auto& offsets, int64_t n) {
    for (int64_t i = 0; i < n; ++i) combine(static_cast<size_t>(offsets[0] + i * step), values[i]);
    values += n;
  });
}

// Sums in f64, so that the length of the sum does not show in the f32 result.
void reduce_sum_kernel(Operands in, const Attrs&, Tensor& out) {
  const F32Input x(in[0]);
  F32Output y(out);
  std::vector<double> sums(y.values().size(), 0.0);
  reduce_elements(in[0], out.shape(), x.data(), [&](size_t at, float v) { sums[at] += v; });
  for (size_t i = 0; i < sums.size(); ++i) y.values()[i] = static_cast<float>(sums[i]);
  y.store();
}

void reduce_max_kernel(Operands in, const Attrs&, Tensor& out) {
  const F32Input x(in[0]);
  F32Output y(out);
  const std::span<float> largest = y.values();
  std::fill(largest.begin(), largest.end(), -std::numeric_limits<float>::infinity());
  reduce_elements(in[0], out.shape(), x.data(), [&](size_t at, float v) {
    if (v > largest[at] || v != v) largest[at] = v;  // a NaN stays: nothing is larger
  });
  y.store();
}

Values vjp_reduce_max(const VjpContext& c) {
  const Value x = c.inputs[0];
  const Value is_max = convert(compare(x, c.output, "eq"), x.dtype());
  const Value count = reduce_sum(is_max, c.node.attrs.integers("axes"));
  return {mul(is_max, div(c.cotangent, count))};
}

std::vector<OpSample> reduce_samples() {
  const auto axes = [](std::vector<int64_t> list) { return Attrs{{"axes", std::move(list)}}; };
  return {
      {.inputs = {{DType::kF32, {3, 5}}}, .attrs = axes({1})},
      {.inputs = {{DType::kF32, {3, 5}}}, .attrs = axes({0})},
      {.inputs = {{DType::kF32, {2, 3, 4}}}, .attrs = axes({1})},
      {.inputs = {{DType::kF32, {2, 3, 4}}}, .attrs = axes({0, 2})},
      {.inputs = {{DType::kF32, {1, 6}}}, .attrs = axes({0, 1})},
  };
}

constexpr OpDef kReduceSum = {
    .name = "reduce_sum",
    .arity = 1,
    .attrs = kReduceAttrs,
    .traits = {.reduction = true},
    .summary = "Sum over `axes`, which stay with size 1.",
    .infer = infer_reduce,
    .kernel = reduce_sum_kernel,
    .vjp = [](const VjpContext& c) -> Values {
      return {broadcast(c.cotangent, c.inputs[0].shape())};
    },
    .no_grad_reason = "",
    .onnx =
        [](const LowerContext& c) {  // opset 13 made the axes an operand of ReduceSum only
          return lower_with(c, "ReduceSum", {c.writer.constant_i64(c.node.attrs.integers("axes"))},
                            {{"keepdims", int64_t{1}}});
        },
    .openvino =
        [](const LowerContext& c) {
          return lower_with(c, "opset1::ReduceSum",
                            {c.writer.constant_i64(c.node.attrs.integers("axes"))},
                            {{"keep_dims", std::string("true")}});
        },
    .samples = reduce_samples,
};

constexpr OpDef kReduceMax = {
    .name = "reduce_max",
    .arity = 1,
    .attrs = kReduceAttrs,
    .traits = {.reduction = true},
    .summary =
        "Maximum over `axes`, which stay with size 1; NaN if any element is. The gradient is "
        "divided equally between elements that equal the maximum.",
    .infer = infer_reduce,
    .kernel = reduce_max_kernel,
    .vjp = vjp_reduce_max,
    .no_grad_reason = "",
    .onnx =
        [](const LowerContext& c) {
          return lower_as(c, "ReduceMax",
                          {{"axes", c.node.attrs.integers("axes")}, {"keepdims", int64_t{1}}});
        },
    .openvino =
        [](const LowerContext& c) {
          return lower_with(c, "opset1::ReduceMax",
                            {c.writer.constant_i64(c.node.attrs.integers("axes"))},
                            {{"keep_dims", std::string("true")}});
        },
    .samples = reduce_samples,
};

constexpr const OpDef* kRows[] = {&kReduceSum, &kReduceMax};

}  // namespace

std::span<const OpDef* const> reduce_rows() { return kRows; }

Value reduce_sum(Value x, std::vector<int64_t> axes) {
  return x.builder->apply(kReduceSum, {x}, {{"axes", std::move(axes)}});
}

Value reduce_max(Value x, std::vector<int64_t> axes) {
  return x.builder->apply(kReduceMax, {x}, {{"axes", std::move(axes)}});
}

}  // namespace npu::ops
