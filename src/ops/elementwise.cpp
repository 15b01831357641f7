// Elementwise float arithmetic: add sub mul div max min, neg exp log sqrt rsqrt sigmoid.
#include <cmath>

#include "ops/kernel.h"
#include "ops/rows.h"

namespace npu::ops {
namespace {

using Operands = std::span<const Tensor>;
using Values = std::vector<Value>;

// ---- shape rules -------------------------------------------------------------------------------

Result<TensorType> infer_unary(std::span<const TensorType> in, const Attrs&) {
  if (!is_float(in[0].dtype)) return broken("the operand is of a float type");
  return in[0];
}

Result<TensorType> infer_binary(std::span<const TensorType> in, const Attrs&) {
  if (!is_float(in[0].dtype) || in[0].dtype != in[1].dtype) {
    return broken("operands are of one float type");
  }
  Result<Shape> shape = broadcast_shape(in);
  if (!shape.ok()) return shape.error();
  return TensorType{in[0].dtype, shape.value()};
}

// ---- kernels -----------------------------------------------------------------------------------

template <float (*function)(float)>
void unary_kernel(Operands in, const Attrs&, Tensor& out) {
  const F32Input x(in[0]);
  F32Output y(out);
  for (size_t i = 0; i < x.values().size(); ++i) y.values()[i] = function(x.values()[i]);
  y.store();
}

template <float (*function)(float, float)>
void binary_kernel(Operands in, const Attrs&, Tensor& out) {
  const F32Input a(in[0]), b(in[1]);
  F32Output y(out);
  const Strides a_strides = broadcast_strides(in[0].shape(), out.shape());
  const Strides b_strides = broadcast_strides(in[1].shape(), out.shape());
  const int64_t a_step = inner_stride(a_strides), b_step = inner_stride(b_strides);
  float* write = y.data();
  for_each_row<2>(out.shape(), {a_strides, b_strides}, [&](const auto& offsets, int64_t n) {
    const float* read_a = a.data() + offsets[0];
    const float* read_b = b.data() + offsets[1];
    for (int64_t i = 0; i < n; ++i) write[i] = function(read_a[i * a_step], read_b[i * b_step]);
    write += n;
  });
  y.store();
}

float add_f32(float a, float b) { return a + b; }
float sub_f32(float a, float b) { return a - b; }
float mul_f32(float a, float b) { return a * b; }
float div_f32(float a, float b) { return a / b; }
// NaN when either operand is NaN.
float max_f32(float a, float b) { return a > b || a != a ? a : b; }
float min_f32(float a, float b) { return a < b || a != a ? a : b; }
float neg_f32(float x) { return -x; }
float exp_f32(float x) { return std::exp(x); }
float log_f32(float x) { return std::log(x); }
float sqrt_f32(float x) { return std::sqrt(x); }
float rsqrt_f32(float x) { return 1.0f / std::sqrt(x); }
float sigmoid_f32(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// ---- derivatives -------------------------------------------------------------------------------

// Gradient of max or min: to the operand that `wins` ("gt" or "lt"), half to each where equal.
Values vjp_extremum(const VjpContext& c, std::string_view wins) {
  const Value a = c.inputs[0], b = c.inputs[1], g = c.cotangent;
  const Value half = select(compare(a, b, "eq"), scale(g, 0.5), constant_like(g, 0));
  const auto share = [&](Value winner, Value other) {
    return unbroadcast(select(compare(winner, other, wins), g, half), winner.shape());
  };
  return {share(a, b), share(b, a)};
}

// ---- samples -----------------------------------------------------------------------------------

std::vector<OpSample> unary_samples(double low, double high) {
  return {{.inputs = {{DType::kF32, {3, 5}}}, .low = low, .high = high},
          {.inputs = {{DType::kF32, {}}}, .low = low, .high = high}};
}

// Equal shapes, a repeated row, a repeated column, both at once, scalars.
std::vector<OpSample> binary_samples(double low, double high) {
  std::vector<OpSample> samples;
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{3, 5}, {3, 5}}, {{3, 5}, {1, 5}}, {{2, 3, 1}, {2, 3, 4}}, {{3, 1}, {1, 4}}, {{}, {}}};
  for (const auto& [a, b] : shapes) {
    samples.push_back({.inputs = {{DType::kF32, a}, {DType::kF32, b}}, .low = low, .high = high});
  }
  return samples;
}

// What distinguishes one arithmetic row from the next.
struct Arithmetic {
  std::string_view name;
  std::string_view summary;
  OpDef::Kernel kernel;
  OpDef::Vjp vjp;
  OpDef::Lower onnx, openvino;
  OpDef::Samples samples;
  bool commutative = false;
};

constexpr OpDef row(const Arithmetic& a, int arity) {
  return {.name = a.name,
          .arity = arity,
          .attrs = {},
          .traits = {.elementwise = true, .commutative = a.commutative},
          .summary = a.summary,
          .infer = arity == 1 ? infer_unary : infer_binary,
          .kernel = a.kernel,
          .vjp = a.vjp,
          .no_grad_reason = "",
          .onnx = a.onnx,
          .openvino = a.openvino,
          .samples = a.samples};
}
constexpr OpDef unary_row(const Arithmetic& a) { return row(a, 1); }
constexpr OpDef binary_row(const Arithmetic& a) { return row(a, 2); }

// ---- rows --------------------------------------------------------------------------------------

constexpr OpDef kAdd = binary_row({
    .name = "add",
    .summary = "a + b.",
    .kernel = binary_kernel<add_f32>,
    .vjp = [](const VjpContext& c) -> Values {
      return {unbroadcast(c.cotangent, c.inputs[0].shape()),
              unbroadcast(c.cotangent, c.inputs[1].shape())};
    },
    .onnx = [](const LowerContext& c) { return lower_as(c, "Add"); },
    .openvino = [](const LowerContext& c) { return lower_as(c, "opset1::Add", numpy_broadcast()); },
    .samples = [] { return binary_samples(-1, 1); },
    .commutative = true,
});

constexpr OpDef kSub = binary_row({
    .name = "sub",
    .summary = "a - b.",
    .kernel = binary_kernel<sub_f32>,
    .vjp = [](const VjpContext& c) -> Values {
      return {unbroadcast(c.cotangent, c.inputs[0].shape()),
              neg(unbroadcast(c.cotangent, c.inputs[1].shape()))};
    },
    .onnx = [](const LowerContext& c) { return lower_as(c, "Sub"); },
    .openvino =
        [](const LowerContext& c) { return lower_as(c, "opset1::Subtract", numpy_broadcast()); },
    .samples = [] { return binary_samples(-1, 1); },
});

constexpr OpDef kMul = binary_row({
    .name = "mul",
    .summary = "a * b.",
    .kernel = binary_kernel<mul_f32>,
    .vjp = [](const VjpContext& c) -> Values {
      const Value a = c.inputs[0], b = c.inputs[1], g = c.cotangent;
      return {unbroadcast(mul(g, b), a.shape()), unbroadcast(mul(g, a), b.shape())};
    },
    .onnx = [](const LowerContext& c) { return lower_as(c, "Mul"); },
    .openvino =
        [](const LowerContext& c) { return lower_as(c, "opset1::Multiply", numpy_broadcast()); },
    .samples = [] { return binary_samples(-1, 1); },
    .commutative = true,
});

constexpr OpDef kDiv = binary_row({
    .name = "div",
    .summary = "a / b.",
    .kernel = binary_kernel<div_f32>,
    .vjp = [](const VjpContext& c) -> Values {
      const Value a = c.inputs[0], b = c.inputs[1], y = c.output, g = c.cotangent;
      // d(a/b)/db = -y/b, and b is constant over what is summed, so the division comes last.
      return {unbroadcast(div(g, b), a.shape()), neg(div(unbroadcast(mul(g, y), b.shape()), b))};
    },
    .onnx = [](const LowerContext& c) { return lower_as(c, "Div"); },
    .openvino =
        [](const LowerContext& c) { return lower_as(c, "opset1::Divide", numpy_broadcast()); },
    .samples = [] { return binary_samples(0.5, 2); },
});

constexpr OpDef kMax = binary_row({
    .name = "max",
    .summary = "The larger of a and b, NaN if either is; equal operands share the gradient.",
    .kernel = binary_kernel<max_f32>,
    .vjp = [](const VjpContext& c) { return vjp_extremum(c, "gt"); },
    .onnx = [](const LowerContext& c) { return lower_as(c, "Max"); },
    .openvino =
        [](const LowerContext& c) { return lower_as(c, "opset1::Maximum", numpy_broadcast()); },
    .samples = [] { return binary_samples(-1, 1); },
    .commutative = true,
});

constexpr OpDef kMin = binary_row({
    .name = "min",
    .summary = "The smaller of a and b, NaN if either is; equal operands share the gradient.",
    .kernel = binary_kernel<min_f32>,
    .vjp = [](const VjpContext& c) { return vjp_extremum(c, "lt"); },
    .onnx = [](const LowerContext& c) { return lower_as(c, "Min"); },
    .openvino =
        [](const LowerContext& c) { return lower_as(c, "opset1::Minimum", numpy_broadcast()); },
    .samples = [] { return binary_samples(-1, 1); },
    .commutative = true,
});

constexpr OpDef kNeg = unary_row({
    .name = "neg",
    .summary = "-x.",
    .kernel = unary_kernel<neg_f32>,
    .vjp = [](const VjpContext& c) -> Values { return {neg(c.cotangent)}; },
    .onnx = [](const LowerContext& c) { return lower_as(c, "Neg"); },
    .openvino = [](const LowerContext& c) { return lower_as(c, "opset1::Negative"); },
    .samples = [] { return unary_samples(-1, 1); },
});

constexpr OpDef kExp = unary_row({
    .name = "exp",
    .summary = "e to the power x.",
    .kernel = unary_kernel<exp_f32>,
    .vjp = [](const VjpContext& c) -> Values { return {mul(c.cotangent, c.output)}; },
    .onnx = [](const LowerContext& c) { return lower_as(c, "Exp"); },
    .openvino = [](const LowerContext& c) { return lower_as(c, "opset1::Exp"); },
    .samples = [] { return unary_samples(-2, 1); },
});

constexpr OpDef kLog = unary_row({
    .name = "log",
    .summary = "Natural logarithm of x.",
    .kernel = unary_kernel<log_f32>,
    .vjp = [](const VjpContext& c) -> Values { return {div(c.cotangent, c.inputs[0])}; },
    .onnx = [](const LowerContext& c) { return lower_as(c, "Log"); },
    .openvino = [](const LowerContext& c) { return lower_as(c, "opset1::Log"); },
    .samples = [] { return unary_samples(0.5, 3); },
});

constexpr OpDef kSqrt = unary_row({
    .name = "sqrt",
    .summary = "Square root of x.",
    .kernel = unary_kernel<sqrt_f32>,
    .vjp = [](const VjpContext& c) -> Values { return {div(scale(c.cotangent, 0.5), c.output)}; },
    .onnx = [](const LowerContext& c) { return lower_as(c, "Sqrt"); },
    .openvino = [](const LowerContext& c) { return lower_as(c, "opset1::Sqrt"); },
    .samples = [] { return unary_samples(0.5, 3); },
});

constexpr OpDef kRsqrt = unary_row({
    .name = "rsqrt",
    .summary = "1 / sqrt(x).",
    .kernel = unary_kernel<rsqrt_f32>,
    .vjp = [](const VjpContext& c) -> Values {
      const Value y = c.output;
      return {mul(scale(c.cotangent, -0.5), mul(y, mul(y, y)))};
    },
    .onnx =
        [](const LowerContext& c) {
          const GraphWriter::Ref root = lower_as(c, "Sqrt");
          return c.writer.node("Reciprocal", std::span(&root, 1), {}, c.node.type);
        },
    .openvino =
        [](const LowerContext& c) {
          // 1 / Sqrt is the form that the plugins' RMS fusion looks for.
          const GraphWriter::Ref root = lower_as(c, "opset1::Sqrt");
          const Tensor one = Tensor::scalar_f32(1).to(c.node.type.dtype);
          const GraphWriter::Ref operands[] = {c.writer.constant(one), root};
          return c.writer.node("opset1::Divide", operands, numpy_broadcast(), c.node.type);
        },
    .samples = [] { return unary_samples(0.5, 3); },
});

constexpr OpDef kSigmoid = unary_row({
    .name = "sigmoid",
    .summary = "1 / (1 + exp(-x)).",
    .kernel = unary_kernel<sigmoid_f32>,
    .vjp = [](const VjpContext& c) -> Values {
      const Value y = c.output;
      return {mul(c.cotangent, mul(y, sub(constant_like(y, 1), y)))};
    },
    .onnx = [](const LowerContext& c) { return lower_as(c, "Sigmoid"); },
    .openvino = [](const LowerContext& c) { return lower_as(c, "opset1::Sigmoid"); },
    .samples = [] { return unary_samples(-3, 3); },
});

constexpr const OpDef* kRows[] = {&kAdd, &kSub, &kMul, &kDiv,  &kMax,   &kMin,
                                  &kNeg, &kExp, &kLog, &kSqrt, &kRsqrt, &kSigmoid};

}  // namespace

std::span<const OpDef* const> elementwise_rows() { return kRows; }

Value add(Value a, Value b) { return a.builder->apply(kAdd, {a, b}); }
Value sub(Value a, Value b) { return a.builder->apply(kSub, {a, b}); }
Value mul(Value a, Value b) { return a.builder->apply(kMul, {a, b}); }
Value div(Value a, Value b) { return a.builder->apply(kDiv, {a, b}); }
Value max(Value a, Value b) { return a.builder->apply(kMax, {a, b}); }
Value min(Value a, Value b) { return a.builder->apply(kMin, {a, b}); }
Value neg(Value x) { return x.builder->apply(kNeg, {x}); }
Value exp(Value x) { return x.builder->apply(kExp, {x}); }
Value log(Value x) { return x.builder->apply(kLog, {x}); }
Value sqrt(Value x) { return x.builder->apply(kSqrt, {x}); }
Value rsqrt(Value x) { return x.builder->apply(kRsqrt, {x}); }
Value sigmoid(Value x) { return x.builder->apply(kSigmoid, {x}); }

}  // namespace npu::ops
