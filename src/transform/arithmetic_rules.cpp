// Rules of arithmetic that keep every bit (NaN payloads aside).
#include <cmath>

#include "ops/ops.h"
#include "transform/rules.h"

namespace npu {
namespace {

using Operands = std::span<const Value>;

// Every value of `narrow` is a value of `wide`.
bool contains(DType wide, DType narrow) {
  if (wide == narrow || narrow == DType::kPred) return true;
  if (wide == DType::kF32) return narrow == DType::kBF16 || narrow == DType::kF16;
  return wide == DType::kI64 && narrow == DType::kI32;
}

Value convert_convert(Builder&, const Node& node, Operands in) {
  if (!is(node, "convert") || !is(in[0], "convert")) return {};
  const Value source = operand(in[0], 0);
  if (!contains(in[0].dtype(), source.dtype())) return {};
  return ops::convert(source, node.type.dtype);
}

Value times_one(Builder&, const Node& node, Operands in) {
  if (!is(node, "mul") && !is(node, "div")) return {};
  if (is_constant(in[1], 1.0) && in[0].type() == node.type) return in[0];
  if (is(node, "mul") && is_constant(in[0], 1.0) && in[1].type() == node.type) return in[1];
  return {};
}

// x - (+0) and x + (-0) are x for every x; x + (+0) is not, for x = -0.
Value add_neutral_zero(Builder&, const Node& node, Operands in) {
  if (is(node, "sub") && is_constant(in[1], 0.0) && in[0].type() == node.type) return in[0];
  if (!is(node, "add")) return {};
  if (is_constant(in[1], -0.0) && in[0].type() == node.type) return in[0];
  if (is_constant(in[0], -0.0) && in[1].type() == node.type) return in[1];
  return {};
}

Value neg_neg(Builder&, const Node& node, Operands in) {
  return is(node, "neg") && is(in[0], "neg") ? operand(in[0], 0) : Value{};
}

// x + (-y) is left to those that need it: legalise.cpp.
Value sub_neg(Builder&, const Node& node, Operands in) {
  if (is(node, "sub") && is(in[1], "neg")) return ops::add(in[0], operand(in[1], 0));
  return {};
}

Value reduce_unit_axes(Builder&, const Node& node, Operands in) {
  const bool sum = is(node, "reduce_sum");
  if (!sum && !is(node, "reduce_max")) return {};
  const std::vector<int64_t> axes = long_axes(node, in[0]);
  if (axes == node.attrs.integers("axes")) return {};
  if (axes.empty()) return sum ? Value{} : in[0];  // see sum_of_one
  return sum ? ops::reduce_sum(in[0], axes) : ops::reduce_max(in[0], axes);
}

// Elementwise on constants: the row's own kernel computes one element.
Value fold_constants(Builder& builder, const Node& node, Operands in) {
  if (!node.op->traits.elementwise || !is_float(node.type.dtype)) return {};
  std::vector<Tensor> elements;
  for (Value value : in) {
    const std::optional<double> number = constant_value(value);
    if (!number) return {};
    Tensor element_tensor(value.dtype(), Shape(value.shape().size(), 1));
    set_element(element_tensor, 0, *number);
    elements.push_back(std::move(element_tensor));
  }
  Tensor result(node.type.dtype, Shape(node.type.shape.size(), 1));
  node.op->kernel(elements, node.attrs, result);
  const double number = element(result, 0);
  if (!std::isfinite(number)) return {};
  return ops::constant(builder, node.type, number);
}

constexpr Rule kRules[] = {
    {"convert_convert", "a step through a wider type changes no value", true, convert_convert},
    {"times_one", "x * 1 = x / 1 = x", true, times_one},
    {"add_neutral_zero", "x - (+0) = x + (-0) = x, also for x = -0", true, add_neutral_zero},
    {"neg_neg", "-(-x) = x", true, neg_neg},
    {"sub_neg", "x - (-y) = x + y by definition; one op less", true, sub_neg},
    {"reduce_unit_axes", "axes of size 1 need no reduction", true, reduce_unit_axes},
    {"fold_constants", "an elementwise op on constants is a constant, computed by the row's kernel",
     true, fold_constants},
};

}  // namespace

std::span<const Rule> arithmetic_rules() { return kRules; }

}  // namespace npu
