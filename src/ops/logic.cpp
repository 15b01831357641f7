// Rows between dtypes and choices: convert, compare, select, stop_gradient.
#include <algorithm>
#include <array>
#include <cstring>

#include "ops/kernel.h"
#include "ops/rows.h"

namespace npu::ops {
namespace {

using Operands = std::span<const Tensor>;
using Values = std::vector<Value>;

// ---- convert -----------------------------------------------------------------------------------

constexpr AttrSpec kConvertAttrs[] = {{"dtype", AttrKind::kString}};

Result<TensorType> infer_convert(std::span<const TensorType> in, const Attrs& attrs) {
  const Result<DType> dtype = named_dtype(attrs);
  if (!dtype.ok()) return dtype.error();
  return TensorType{dtype.value(), in[0].shape};
}

void convert_kernel(Operands in, const Attrs&, Tensor& out) {
  const Tensor converted = in[0].to(out.dtype());
  std::memcpy(out.mutable_data(), converted.data(), converted.bytes());
}

Values vjp_convert(const VjpContext& c) {
  const DType from = c.inputs[0].dtype();
  if (!is_float(from) || !is_float(c.output.dtype())) return {kNoGradient};
  return {convert(c.cotangent, from)};
}

std::vector<OpSample> convert_samples() {
  const auto to = [](const char* dtype) { return Attrs{{"dtype", std::string(dtype)}}; };
  return {
      // The rounding of f32 to 16 bits is a staircase, so the finite difference takes large steps.
      {.inputs = {{DType::kF32, {3, 5}}},
       .attrs = to("bf16"),
       .grad_step = 4,
       .grad_tolerance = 1e-2},
      {.inputs = {{DType::kF32, {3, 5}}}, .attrs = to("f16"), .grad_step = 4},
      {.inputs = {{DType::kF32, {3, 5}}}, .attrs = to("f32")},
      {.inputs = {{DType::kBF16, {3, 5}}},
       .attrs = to("f32"),
       .grad_step = 4,
       .grad_tolerance = 1e-2},
      {.inputs = {{DType::kF32, {7}}}, .attrs = to("i32"), .low = -9, .high = 9},
      {.inputs = {{DType::kI32, {7}}}, .attrs = to("f32"), .low = -9, .high = 9},
      {.inputs = {{DType::kI64, {7}}}, .attrs = to("i32"), .low = -9, .high = 9},
      {.inputs = {{DType::kPred, {7}}}, .attrs = to("f32"), .low = 0, .high = 1},
  };
}

constexpr OpDef kConvert = {
    .name = "convert",
    .arity = 1,
    .attrs = kConvertAttrs,
    .traits = {.elementwise = true},
    .summary =
        "x in another dtype: to floats round to nearest even, to integers truncate; the only "
        "op that changes dtype. No gradient passes through integers.",
    .infer = infer_convert,
    .kernel = convert_kernel,
    .vjp = vjp_convert,
    .no_grad_reason = "",
    .onnx =
        [](const LowerContext& c) {
          return lower_as(c, "Cast", {{"to", onnx_dtype(c.node.type.dtype)}});
        },
    .openvino =
        [](const LowerContext& c) {
          return lower_as(c, "opset1::Convert",
                          {{"destination_type", openvino_dtype(c.node.type.dtype)}});
        },
    .samples = convert_samples,
};

// ---- compare -----------------------------------------------------------------------------------

constexpr AttrSpec kCompareAttrs[] = {{"kind", AttrKind::kString}};

// A kind of comparison by which of <, =, >, NaN make it true, and its names.
struct CompareKind {
  std::string_view kind;
  bool less, equal, greater, unordered;
  std::string_view onnx, openvino;
};
constexpr CompareKind kCompareKinds[] = {
    {"eq", false, true, false, false, "Equal", "opset1::Equal"},
    {"ne", true, false, true, true, "", "opset1::NotEqual"},  // ONNX has no NotEqual
    {"lt", true, false, false, false, "Less", "opset1::Less"},
    {"le", true, true, false, false, "LessOrEqual", "opset1::LessEqual"},
    {"gt", false, false, true, false, "Greater", "opset1::Greater"},
    {"ge", false, true, true, false, "GreaterOrEqual", "opset1::GreaterEqual"},
};

const CompareKind* find_kind(std::string_view kind) {
  const auto at = std::find_if(std::begin(kCompareKinds), std::end(kCompareKinds),
                               [&](const CompareKind& k) { return k.kind == kind; });
  return at == std::end(kCompareKinds) ? nullptr : at;
}

Result<TensorType> infer_compare(std::span<const TensorType> in, const Attrs& attrs) {
  if (find_kind(attrs.string("kind")) == nullptr) {
    return broken("kind is one of eq, ne, lt, le, gt, ge, not \"" + attrs.string("kind") + "\"");
  }
  if (in[0].dtype != in[1].dtype) return broken("operands are of one dtype");
  if (in[0].dtype == DType::kPred) return broken("operands are numeric");
  Result<Shape> shape = broadcast_shape(in);
  if (!shape.ok()) return shape.error();
  return TensorType{DType::kPred, shape.value()};
}

template <class T>
void compare_values(const T* a, const T* b, Operands in, const CompareKind& kind, Tensor& out) {
  const Strides a_strides = broadcast_strides(in[0].shape(), out.shape());
  const Strides b_strides = broadcast_strides(in[1].shape(), out.shape());
  const int64_t a_step = inner_stride(a_strides), b_step = inner_stride(b_strides);
  uint8_t* write = out.mutable_values<uint8_t>().data();
  for_each_row<2>(out.shape(), {a_strides, b_strides}, [&](const auto& offsets, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const T x = a[offsets[0] + i * a_step], y = b[offsets[1] + i * b_step];
      const bool ordered = x < y || x == y || x > y;  // false only with NaN
      const bool holds = (x < y && kind.less) || (x == y && kind.equal) ||
                         (x > y && kind.greater) || (!ordered && kind.unordered);
      write[i] = holds ? 1 : 0;
    }
    write += n;
  });
}

void compare_kernel(Operands in, const Attrs& attrs, Tensor& out) {
  const CompareKind& kind = *find_kind(attrs.string("kind"));
  if (is_float(in[0].dtype())) {
    compare_values(F32Input(in[0]).data(), F32Input(in[1]).data(), in, kind, out);
  } else {
    compare_values(integer_values(in[0]).data(), integer_values(in[1]).data(), in, kind, out);
  }
}

std::vector<OpSample> compare_samples() {
  std::vector<OpSample> samples;
  for (const CompareKind& kind : kCompareKinds) {
    const Attrs attrs = {{"kind", std::string(kind.kind)}};
    samples.push_back({.inputs = {{DType::kF32, {3, 5}}, {DType::kF32, {1, 5}}}, .attrs = attrs});
    // Few distinct integers, so that equality occurs.
    samples.push_back({.inputs = {{DType::kI32, {4, 4}}, {DType::kI32, {4, 1}}},
                       .attrs = attrs,
                       .low = 0,
                       .high = 2});
  }
  return samples;
}

constexpr OpDef kCompare = {
    .name = "compare",
    .arity = 2,
    .attrs = kCompareAttrs,
    .traits = {.elementwise = true},
    .summary =
        "Whether a and b are in the relation `kind` (eq, ne, lt, le, gt, ge); with NaN only "
        "ne holds.",
    .infer = infer_compare,
    .kernel = compare_kernel,
    .vjp = nullptr,
    .no_grad_reason = "a truth value is constant almost everywhere",
    .onnx =
        [](const LowerContext& c) {
          const CompareKind& kind = *find_kind(c.node.attrs.string("kind"));
          if (!kind.onnx.empty()) return lower_as(c, kind.onnx);
          const GraphWriter::Ref equal = lower_as(c, "Equal");
          return c.writer.node("Not", std::span(&equal, 1), {}, c.node.type);
        },
    .openvino =
        [](const LowerContext& c) {
          return lower_as(c, find_kind(c.node.attrs.string("kind"))->openvino, numpy_broadcast());
        },
    .samples = compare_samples,
};

// ---- select ------------------------------------------------------------------------------------

Result<TensorType> infer_select(std::span<const TensorType> in, const Attrs&) {
  if (in[0].dtype != DType::kPred) return broken("the first operand is of type pred");
  if (in[1].dtype != in[2].dtype) return broken("the choices are of one dtype");
  Result<Shape> shape = broadcast_shape(in);
  if (!shape.ok()) return shape.error();
  return TensorType{in[1].dtype, shape.value()};
}

template <class T>
void select_elements(Operands in, Tensor& out) {
  std::array<Strides, 3> strides;
  for (size_t i = 0; i < 3; ++i) strides[i] = broadcast_strides(in[i].shape(), out.shape());
  const int64_t steps[] = {inner_stride(strides[0]), inner_stride(strides[1]),
                           inner_stride(strides[2])};
  const uint8_t* pred = in[0].values<uint8_t>().data();
  const T* if_true = reinterpret_cast<const T*>(in[1].data());
  const T* if_false = reinterpret_cast<const T*>(in[2].data());
  T* write = reinterpret_cast<T*>(out.mutable_data());
  for_each_row<3>(out.shape(), strides, [&](const auto& offsets, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      write[i] = pred[offsets[0] + i * steps[0]] != 0 ? if_true[offsets[1] + i * steps[1]]
                                                      : if_false[offsets[2] + i * steps[2]];
    }
    write += n;
  });
}

void select_kernel(Operands in, const Attrs&, Tensor& out) {
  switch (dtype_bytes(out.dtype())) {
    case 1:
      return select_elements<uint8_t>(in, out);
    case 2:
      return select_elements<uint16_t>(in, out);
    case 4:
      return select_elements<uint32_t>(in, out);
    default:
      return select_elements<uint64_t>(in, out);
  }
}

Values vjp_select(const VjpContext& c) {
  const Value pred = c.inputs[0], g = c.cotangent, zero = constant_like(g, 0);
  return {kNoGradient, unbroadcast(select(pred, g, zero), c.inputs[1].shape()),
          unbroadcast(select(pred, zero, g), c.inputs[2].shape())};
}

std::vector<OpSample> select_samples() {
  return {
      {.inputs = {{DType::kPred, {3, 5}}, {DType::kF32, {3, 5}}, {DType::kF32, {3, 5}}}},
      {.inputs = {{DType::kPred, {3, 5}}, {DType::kF32, {1, 5}}, {DType::kF32, {3, 1}}}},
      {.inputs = {{DType::kPred, {3, 1}}, {DType::kF32, {3, 5}}, {DType::kF32, {1, 1}}}},
      {.inputs = {{DType::kPred, {6}}, {DType::kI32, {6}}, {DType::kI32, {1}}},
       .low = -9,
       .high = 9},
  };
}

constexpr OpDef kSelect = {
    .name = "select",
    .arity = 3,
    .attrs = {},
    .traits = {.elementwise = true},
    .summary =
        "The second operand where the first is true, the third elsewhere. No gradient passes "
        "to the first.",
    .infer = infer_select,
    .kernel = select_kernel,
    .vjp = vjp_select,
    .no_grad_reason = "",
    .onnx = [](const LowerContext& c) { return lower_as(c, "Where"); },
    .openvino =
        [](const LowerContext& c) { return lower_as(c, "opset1::Select", numpy_broadcast()); },
    .samples = select_samples,
};

// ---- stop_gradient -----------------------------------------------------------------------------

constexpr OpDef kStopGradient = {
    .name = "stop_gradient",
    .arity = 1,
    .attrs = {},
    .traits = {.movement = true},
    .summary =
        "x, taken as a constant by differentiation; needed where a term cancels by algebra, "
        "as the maximum does in softmax.",
    .infer = [](std::span<const TensorType> in, const Attrs&) -> Result<TensorType> {
      return in[0];
    },
    .kernel = [](Operands in, const Attrs&,
                 Tensor& out) { std::memcpy(out.mutable_data(), in[0].data(), in[0].bytes()); },
    .vjp = [](const VjpContext&) -> Values { return {kNoGradient}; },
    .no_grad_reason = "",
    .onnx = [](const LowerContext& c) { return lower_as(c, "Identity"); },
    .openvino = [](const LowerContext& c) { return c.inputs[0]; },
    .samples =
        [] {
          return std::vector<OpSample>{{.inputs = {{DType::kF32, {3, 5}}}},
                                       {.inputs = {{DType::kI32, {4}}}, .low = -9, .high = 9}};
        },
};

constexpr const OpDef* kRows[] = {&kConvert, &kCompare, &kSelect, &kStopGradient};

}  // namespace

std::span<const OpDef* const> logic_rows() { return kRows; }

Value convert(Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return x.builder->apply(kConvert, {x}, {{"dtype", std::string(dtype_name(dtype))}});
}

Value compare(Value a, Value b, std::string_view kind) {
  return a.builder->apply(kCompare, {a, b}, {{"kind", std::string(kind)}});
}

Value select(Value pred, Value if_true, Value if_false) {
  return pred.builder->apply(kSelect, {pred, if_true, if_false});
}

Value stop_gradient(Value x) { return x.builder->apply(kStopGradient, {x}); }

}  // namespace npu::ops
