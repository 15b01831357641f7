// Rows that move elements of any dtype without arithmetic: reshape transpose broadcast slice concat
// pad.
#include <cstring>
#include <numeric>
#include <vector>

#include "ops/kernel.h"
#include "ops/rows.h"

namespace npu::ops {
namespace {

using Operands = std::span<const Tensor>;
using Types = std::span<const TensorType>;
using Integers = std::vector<int64_t>;
using Values = std::vector<Value>;

// The start of row `first` of `tensor` in elements, by its strides.
int64_t offset_of(const Integers& first, const Strides& strides) {
  return std::inner_product(first.begin(), first.end(), strides.begin(), int64_t{0});
}

StridedBytes<const std::byte> whole(const Tensor& tensor) {
  return {tensor.data(), strides_of(tensor.shape())};
}

StridedBytes<std::byte> whole(Tensor& tensor) {
  return {tensor.mutable_data(), strides_of(tensor.shape())};
}

// The part of `bytes` that begins at `first`.
template <class Byte>
StridedBytes<Byte> from(StridedBytes<Byte> bytes, const Integers& first, size_t element_bytes) {
  bytes.data += offset_of(first, bytes.strides) * static_cast<int64_t>(element_bytes);
  return bytes;
}

// ---- reshape -----------------------------------------------------------------------------------

constexpr AttrSpec kShapeAttrs[] = {{"shape", AttrKind::kIntegers}};

Result<TensorType> infer_reshape(Types in, const Attrs& attrs) {
  const TensorType out = {in[0].dtype, attrs.integers("shape")};
  if (auto rule = broken_type_bound(out)) return broken(*rule);
  if (num_elements(out.shape) != num_elements(in[0].shape)) {
    return broken("the number of elements stays, not " + shape_text(out.shape));
  }
  return out;
}

constexpr OpDef kReshape = {
    .name = "reshape",
    .arity = 1,
    .attrs = kShapeAttrs,
    .traits = {.movement = true},
    .summary = "The same elements in row-major order under another shape.",
    .infer = infer_reshape,
    .kernel = [](Operands in, const Attrs&,
                 Tensor& out) { std::memcpy(out.mutable_data(), in[0].data(), in[0].bytes()); },
    .vjp = [](const VjpContext& c) -> Values {
      return {reshape(c.cotangent, c.inputs[0].shape())};
    },
    .no_grad_reason = "",
    .onnx =
        [](const LowerContext& c) {
          return lower_with(c, "Reshape", {c.writer.constant_i64(c.node.type.shape)});
        },
    .openvino =
        [](const LowerContext& c) {
          return lower_with(c, "opset1::Reshape", {c.writer.constant_i64(c.node.type.shape)},
                            {{"special_zero", std::string("false")}});
        },
    .samples =
        [] {
          const auto to = [](Integers shape) { return Attrs{{"shape", std::move(shape)}}; };
          return std::vector<OpSample>{{.inputs = {{DType::kF32, {3, 4}}}, .attrs = to({2, 6})},
                                       {.inputs = {{DType::kF32, {1, 1}}}, .attrs = to({})},
                                       {.inputs = {{DType::kI32, {2, 6}}}, .attrs = to({3, 1, 4})}};
        },
};

// ---- transpose ---------------------------------------------------------------------------------

constexpr AttrSpec kTransposeAttrs[] = {{"perm", AttrKind::kIntegers}};

Result<TensorType> infer_transpose(Types in, const Attrs& attrs) {
  const Integers& perm = attrs.integers("perm");
  const Shape& shape = in[0].shape;
  std::vector<bool> seen(shape.size(), false);
  if (perm.size() != shape.size()) return broken("perm has one entry per dimension");
  TensorType out = {in[0].dtype, {}};
  for (const int64_t d : perm) {
    if (d < 0 || d >= static_cast<int64_t>(shape.size()) || seen[static_cast<size_t>(d)]) {
      return broken("perm holds each dimension once");
    }
    seen[static_cast<size_t>(d)] = true;
    out.shape.push_back(shape[static_cast<size_t>(d)]);
  }
  return out;
}

void transpose_kernel(Operands in, const Attrs& attrs, Tensor& out) {
  const Strides strides = strides_of(in[0].shape());
  Strides permuted;
  for (const int64_t d : attrs.integers("perm"))
    permuted.push_back(strides[static_cast<size_t>(d)]);
  copy_strided(out.shape(), dtype_bytes(out.dtype()), {in[0].data(), permuted}, whole(out));
}

Values vjp_transpose(const VjpContext& c) {
  const Integers& perm = c.node.attrs.integers("perm");
  Integers inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) {
    inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  }
  return {transpose(c.cotangent, inverse)};
}

constexpr OpDef kTranspose = {
    .name = "transpose",
    .arity = 1,
    .attrs = kTransposeAttrs,
    .traits = {.movement = true},
    .summary = "Dimension i of the result is dimension perm[i] of x.",
    .infer = infer_transpose,
    .kernel = transpose_kernel,
    .vjp = vjp_transpose,
    .no_grad_reason = "",
    .onnx =
        [](const LowerContext& c) {
          return lower_as(c, "Transpose", {{"perm", c.node.attrs.integers("perm")}});
        },
    .openvino =
        [](const LowerContext& c) {
          return lower_with(c, "opset1::Transpose",
                            {c.writer.constant_i64(c.node.attrs.integers("perm"))});
        },
    .samples =
        [] {
          const auto by = [](Integers perm) { return Attrs{{"perm", std::move(perm)}}; };
          return std::vector<OpSample>{
              {.inputs = {{DType::kF32, {3, 5}}}, .attrs = by({1, 0})},
              {.inputs = {{DType::kF32, {2, 3, 4}}}, .attrs = by({2, 0, 1})},
              {.inputs = {{DType::kF32, {2, 3, 4}}}, .attrs = by({1, 0, 2})},
              {.inputs = {{DType::kI64, {2, 3}}}, .attrs = by({1, 0})}};
        },
};

// ---- broadcast ---------------------------------------------------------------------------------

Result<TensorType> infer_broadcast(Types in, const Attrs& attrs) {
  const TensorType out = {in[0].dtype, attrs.integers("shape")};
  const Shape& shape = in[0].shape;
  if (out.shape.size() != shape.size()) return broken("the rank stays");
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] != out.shape[d] && shape[d] != 1) {
      return broken("only dimensions of size 1 are repeated, not to " + shape_text(out.shape));
    }
  }
  return out;
}

constexpr OpDef kBroadcast = {
    .name = "broadcast",
    .arity = 1,
    .attrs = kShapeAttrs,
    .traits = {.movement = true},
    .summary = "Dimensions of size 1 repeated up to `shape`.",
    .infer = infer_broadcast,
    .kernel =
        [](Operands in, const Attrs&, Tensor& out) {
          copy_strided(out.shape(), dtype_bytes(out.dtype()),
                       {in[0].data(), broadcast_strides(in[0].shape(), out.shape())}, whole(out));
        },
    .vjp = [](const VjpContext& c) -> Values {
      return {unbroadcast(c.cotangent, c.inputs[0].shape())};
    },
    .no_grad_reason = "",
    .onnx =
        [](const LowerContext& c) {
          return lower_with(c, "Expand", {c.writer.constant_i64(c.node.type.shape)});
        },
    .openvino =
        [](const LowerContext& c) {
          return lower_with(c, "opset3::Broadcast", {c.writer.constant_i64(c.node.type.shape)},
                            {{"mode", std::string("numpy")}});
        },
    .samples =
        [] {
          const auto to = [](Integers shape) { return Attrs{{"shape", std::move(shape)}}; };
          return std::vector<OpSample>{
              {.inputs = {{DType::kF32, {1, 5}}}, .attrs = to({3, 5})},
              {.inputs = {{DType::kF32, {2, 1, 3, 1}}}, .attrs = to({2, 4, 3, 2})},
              {.inputs = {{DType::kI32, {3, 1}}}, .attrs = to({3, 2})}};
        },
};

// ---- slice -------------------------------------------------------------------------------------

constexpr AttrSpec kSliceAttrs[] = {{"starts", AttrKind::kIntegers},
                                    {"limits", AttrKind::kIntegers}};

Result<TensorType> infer_slice(Types in, const Attrs& attrs) {
  const Integers &starts = attrs.integers("starts"), &limits = attrs.integers("limits");
  const Shape& shape = in[0].shape;
  if (starts.size() != shape.size() || limits.size() != shape.size()) {
    return broken("starts and limits have one entry per dimension");
  }
  TensorType out = in[0];
  for (size_t d = 0; d < shape.size(); ++d) {
    if (starts[d] < 0 || starts[d] >= limits[d] || limits[d] > shape[d]) {
      return broken("0 <= start < limit <= size in dimension " + std::to_string(d));
    }
    out.shape[d] = limits[d] - starts[d];
  }
  return out;
}

void slice_kernel(Operands in, const Attrs& attrs, Tensor& out) {
  const size_t element_bytes = dtype_bytes(out.dtype());
  copy_strided(out.shape(), element_bytes,
               from(whole(in[0]), attrs.integers("starts"), element_bytes), whole(out));
}

Values vjp_slice(const VjpContext& c) {
  const Integers& limits = c.node.attrs.integers("limits");
  Integers after = c.inputs[0].shape();
  for (size_t d = 0; d < after.size(); ++d) after[d] -= limits[d];
  return {pad(c.cotangent, c.node.attrs.integers("starts"), after)};
}

// The axes in which the slice is smaller than its operand, with their starts and limits: formats
// run a slice along few axes faster than one along all.
struct SlicedAxes {
  Integers axes, starts, limits, steps;
};

SlicedAxes sliced_axes(const LowerContext& c) {
  const Integers& starts = c.node.attrs.integers("starts");
  const Integers& limits = c.node.attrs.integers("limits");
  SlicedAxes sliced;
  for (size_t d = 0; d < starts.size(); ++d) {
    const bool last_chance = d + 1 == starts.size() && sliced.axes.empty();
    if (c.node.type.shape[d] == c.input_types[0].shape[d] && !last_chance) continue;
    sliced.axes.push_back(static_cast<int64_t>(d));
    sliced.starts.push_back(starts[d]);
    sliced.limits.push_back(limits[d]);
    sliced.steps.push_back(1);
  }
  return sliced;
}

constexpr OpDef kSlice = {
    .name = "slice",
    .arity = 1,
    .attrs = kSliceAttrs,
    .traits = {.movement = true},
    .summary = "Elements with starts <= index < limits, per dimension.",
    .infer = infer_slice,
    .kernel = slice_kernel,
    .vjp = vjp_slice,
    .no_grad_reason = "",
    .onnx =
        [](const LowerContext& c) {
          const SlicedAxes s = sliced_axes(c);
          GraphWriter& w = c.writer;
          return lower_with(
              c, "Slice",
              {w.constant_i64(s.starts), w.constant_i64(s.limits), w.constant_i64(s.axes)});
        },
    .openvino =
        [](const LowerContext& c) {
          const SlicedAxes s = sliced_axes(c);
          GraphWriter& w = c.writer;
          return lower_with(c, "opset8::Slice",
                            {w.constant_i64(s.starts), w.constant_i64(s.limits),
                             w.constant_i64(s.steps), w.constant_i64(s.axes)});
        },
    .samples =
        [] {
          const auto at = [](Integers starts, Integers limits) {
            return Attrs{{"starts", std::move(starts)}, {"limits", std::move(limits)}};
          };
          return std::vector<OpSample>{
              {.inputs = {{DType::kF32, {4, 6}}}, .attrs = at({0, 3}, {4, 6})},
              {.inputs = {{DType::kF32, {4, 6}}}, .attrs = at({1, 2}, {3, 5})},
              {.inputs = {{DType::kF32, {4, 6}}}, .attrs = at({0, 0}, {4, 6})},
              {.inputs = {{DType::kI64, {2, 3, 4}}}, .attrs = at({1, 0, 1}, {2, 3, 3})}};
        },
};

// ---- concat ------------------------------------------------------------------------------------

constexpr AttrSpec kAxisAttrs[] = {{"axis", AttrKind::kInteger}};

Result<TensorType> infer_concat(Types in, const Attrs& attrs) {
  const int64_t axis = attrs.integer("axis");
  TensorType out = in[0];
  if (axis < 0 || axis >= static_cast<int64_t>(out.shape.size())) {
    return broken("axis is a dimension of the operands");
  }
  const size_t along = static_cast<size_t>(axis);
  out.shape[along] = 0;
  for (const TensorType& part : in) {
    if (part.dtype != out.dtype) return broken("operands are of one dtype");
    if (part.shape.size() != out.shape.size()) return broken("operands have equal rank");
    for (size_t d = 0; d < out.shape.size(); ++d) {
      if (d != along && part.shape[d] != out.shape[d]) {
        return broken("operands differ along the axis only");
      }
    }
    out.shape[along] += part.shape[along];
    if (out.shape[along] > kMaxTensorBytes) return broken("a tensor has at most 2^46 bytes");
  }
  return out;
}

void concat_kernel(Operands in, const Attrs& attrs, Tensor& out) {
  const size_t axis = static_cast<size_t>(attrs.integer("axis"));
  const size_t element_bytes = dtype_bytes(out.dtype());
  Integers first(out.shape().size(), 0);
  for (const Tensor& part : in) {
    copy_strided(part.shape(), element_bytes, whole(part), from(whole(out), first, element_bytes));
    first[axis] += part.shape()[axis];
  }
}

Values vjp_concat(const VjpContext& c) {
  const size_t axis = static_cast<size_t>(c.node.attrs.integer("axis"));
  Integers starts(c.output.shape().size(), 0), limits = c.output.shape();
  Values gradients;
  for (const Value& part : c.inputs) {
    limits[axis] = starts[axis] + part.shape()[axis];
    gradients.push_back(slice(c.cotangent, starts, limits));
    starts[axis] = limits[axis];
  }
  return gradients;
}

constexpr OpDef kConcat = {
    .name = "concat",
    .arity = -1,
    .attrs = kAxisAttrs,
    .traits = {.movement = true},
    .summary = "The operands one after the other along `axis`.",
    .infer = infer_concat,
    .kernel = concat_kernel,
    .vjp = vjp_concat,
    .no_grad_reason = "",
    .onnx =
        [](const LowerContext& c) {
          return lower_as(c, "Concat", {{"axis", c.node.attrs.integer("axis")}});
        },
    .openvino =
        [](const LowerContext& c) {
          return lower_as(c, "opset1::Concat", {{"axis", c.node.attrs.integer("axis")}});
        },
    .samples =
        [] {
          const auto along = [](int64_t axis) { return Attrs{{"axis", axis}}; };
          return std::vector<OpSample>{
              {.inputs = {{DType::kF32, {3, 2}}, {DType::kF32, {3, 4}}}, .attrs = along(1)},
              {.inputs = {{DType::kF32, {1, 4}}, {DType::kF32, {2, 4}}, {DType::kF32, {1, 4}}},
               .attrs = along(0)},
              {.inputs = {{DType::kF32, {2, 3}}}, .attrs = along(0)},
              {.inputs = {{DType::kI32, {2, 1}}, {DType::kI32, {2, 2}}}, .attrs = along(1)}};
        },
};

// ---- pad ---------------------------------------------------------------------------------------

constexpr AttrSpec kPadAttrs[] = {{"low", AttrKind::kIntegers}, {"high", AttrKind::kIntegers}};

Result<TensorType> infer_pad(Types in, const Attrs& attrs) {
  const Integers &low = attrs.integers("low"), &high = attrs.integers("high");
  TensorType out = in[0];
  if (low.size() != out.shape.size() || high.size() != out.shape.size()) {
    return broken("low and high have one entry per dimension");
  }
  for (size_t d = 0; d < out.shape.size(); ++d) {
    if (low[d] < 0 || high[d] < 0 || low[d] > kMaxTensorBytes || high[d] > kMaxTensorBytes) {
      return broken("low and high are between 0 and 2^46");
    }
    out.shape[d] += low[d] + high[d];
  }
  return out;
}

void pad_kernel(Operands in, const Attrs& attrs, Tensor& out) {
  const size_t element_bytes = dtype_bytes(out.dtype());
  std::memset(out.mutable_data(), 0, out.bytes());
  copy_strided(in[0].shape(), element_bytes, whole(in[0]),
               from(whole(out), attrs.integers("low"), element_bytes));
}

Values vjp_pad(const VjpContext& c) {
  const Integers& low = c.node.attrs.integers("low");
  Integers limits = c.inputs[0].shape();
  for (size_t d = 0; d < limits.size(); ++d) limits[d] += low[d];
  return {slice(c.cotangent, low, limits)};
}

constexpr OpDef kPad = {
    .name = "pad",
    .arity = 1,
    .attrs = kPadAttrs,
    .traits = {.movement = true},
    .summary = "x with low[i] zeros before and high[i] zeros after it in dimension i.",
    .infer = infer_pad,
    .kernel = pad_kernel,
    .vjp = vjp_pad,
    .no_grad_reason = "",
    .onnx =
        [](const LowerContext& c) {
          Integers pads = c.node.attrs.integers("low");
          const Integers& high = c.node.attrs.integers("high");
          pads.insert(pads.end(), high.begin(), high.end());
          return lower_with(c, "Pad", {c.writer.constant_i64(pads)},
                            {{"mode", std::string("constant")}});
        },
    .openvino =
        [](const LowerContext& c) {
          GraphWriter& w = c.writer;
          return lower_with(c, "opset1::Pad",
                            {w.constant_i64(c.node.attrs.integers("low")),
                             w.constant_i64(c.node.attrs.integers("high"))},
                            {{"pad_mode", std::string("constant")}});
        },
    .samples =
        [] {
          const auto by = [](Integers low, Integers high) {
            return Attrs{{"low", std::move(low)}, {"high", std::move(high)}};
          };
          return std::vector<OpSample>{
              {.inputs = {{DType::kF32, {2, 3}}}, .attrs = by({0, 2}, {0, 1})},
              {.inputs = {{DType::kF32, {2, 3}}}, .attrs = by({1, 0}, {2, 3})},
              {.inputs = {{DType::kI32, {2, 3}}},
               .attrs = by({0, 1}, {1, 0}),
               .low = -9,
               .high = 9}};
        },
};

constexpr const OpDef* kRows[] = {&kReshape, &kTranspose, &kBroadcast, &kSlice, &kConcat, &kPad};

}  // namespace

std::span<const OpDef* const> movement_rows() { return kRows; }

Value reshape(Value x, Shape shape) {
  return x.builder->apply(kReshape, {x}, {{"shape", std::move(shape)}});
}

Value transpose(Value x, std::vector<int64_t> perm) {
  return x.builder->apply(kTranspose, {x}, {{"perm", std::move(perm)}});
}

Value broadcast(Value x, Shape shape) {
  if (x.shape() == shape) return x;
  return x.builder->apply(kBroadcast, {x}, {{"shape", std::move(shape)}});
}

Value slice(Value x, std::vector<int64_t> starts, std::vector<int64_t> limits) {
  return x.builder->apply(kSlice, {x},
                          {{"starts", std::move(starts)}, {"limits", std::move(limits)}});
}

Value concat(std::span<const Value> parts, int64_t axis) {
  NPU_CHECK(!parts.empty(), "concat takes one or more operands");
  return parts[0].builder->apply(kConcat, {parts.begin(), parts.end()}, {{"axis", axis}});
}

Value pad(Value x, std::vector<int64_t> low, std::vector<int64_t> high) {
  return x.builder->apply(kPad, {x}, {{"low", std::move(low)}, {"high", std::move(high)}});
}

}  // namespace npu::ops
