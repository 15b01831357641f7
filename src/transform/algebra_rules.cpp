// Rules that hold for real numbers but may move a rounding or the sign of a zero.
#include <array>
#include <utility>

#include "ops/ops.h"
#include "transform/rules.h"

namespace npu {
namespace {

using Operands = std::span<const Value>;

// Index of the constant operand of a commutative op of two operands, or -1.
int constant_side(Operands in) {
  if (constant_value(in[1])) return 1;
  return constant_value(in[0]) ? 0 : -1;
}

Value add_zero(Builder&, const Node& node, Operands in) {
  if (!is(node, "add")) return {};
  if (is_constant(in[1], 0.0) && in[0].type() == node.type) return in[0];
  if (is_constant(in[0], 0.0) && in[1].type() == node.type) return in[1];
  return {};
}

Value sum_of_one(Builder&, const Node& node, Operands in) {
  return is(node, "reduce_sum") && long_axes(node, in[0]).empty() ? in[0] : Value{};
}

Value neg_sub(Builder&, const Node& node, Operands in) {
  if (!is(node, "neg") || !is(in[0], "sub")) return {};
  return ops::sub(operand(in[0], 1), operand(in[0], 0));
}

Value scale_scale(Builder&, const Node& node, Operands in) {
  if (!is(node, "mul")) return {};
  const int outer = constant_side(in);
  if (outer < 0) return {};
  const Value inner_mul = in[static_cast<size_t>(1 - outer)];
  if (!is(inner_mul, "mul")) return {};
  const std::array<Value, 2> factors = {operand(inner_mul, 0), operand(inner_mul, 1)};
  const int inner = constant_side(factors);
  if (inner < 0) return {};
  const Value x = factors[static_cast<size_t>(1 - inner)];
  if (x.type() != node.type) return {};
  return ops::scale(x, *constant_value(in[static_cast<size_t>(outer)]) *
                           *constant_value(factors[static_cast<size_t>(inner)]));
}

// The single axis on which a pad adds elements, with how many before and after; -1 for none or
// many.
struct PadAxis {
  int64_t axis = -1, low = 0, high = 0;
};
PadAxis pad_axis(Value value) {
  if (!is(value, "pad")) return {};
  const std::vector<int64_t>& low = node_of(value).attrs.integers("low");
  const std::vector<int64_t>& high = node_of(value).attrs.integers("high");
  PadAxis found;
  for (size_t d = 0; d < low.size(); ++d) {
    if (low[d] == 0 && high[d] == 0) continue;
    if (found.axis >= 0) return {};
    found = {static_cast<int64_t>(d), low[d], high[d]};
  }
  return found;
}

// concat of what two pads moved, where each leaves exactly the room that the other fills.
Value joined_pads(Value one, Value other) {
  for (const auto& [front, back] : {std::pair(one, other), std::pair(other, one)}) {
    const PadAxis a = pad_axis(front), b = pad_axis(back);
    if (a.axis < 0 || a.axis != b.axis || front.type() != back.type()) continue;
    const std::array<Value, 2> parts = {operand(front, 0), operand(back, 0)};
    if (a.low != 0 || b.high != 0) continue;
    if (b.low == parts[0].shape()[static_cast<size_t>(a.axis)]) return ops::concat(parts, a.axis);
  }
  return {};
}

Value add_pads(Builder&, const Node& node, Operands in) {
  return is(node, "add") ? joined_pads(in[0], in[1]) : Value{};
}

// (x + pad) + pad, as a gradient that already holds another term arrives.
Value add_add_pads(Builder&, const Node& node, Operands in) {
  if (!is(node, "add")) return {};
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const Value pad = in[i], sum = in[1 - i];
    if (!is(pad, "pad") || !is(sum, "add")) continue;
    for (const size_t j : {size_t{0}, size_t{1}}) {
      const Value joined = joined_pads(pad, operand(sum, j));
      if (joined.valid() && joined.type() == node.type)
        return ops::add(operand(sum, 1 - j), joined);
    }
  }
  return {};
}

// The operands of a commutative op in the order in which the first satisfies `is_first`.
template <class Test>
std::optional<std::pair<Value, Value>> ordered(Value value, std::string_view op, Test&& is_first) {
  if (!is(value, op)) return std::nullopt;
  const Value a = operand(value, 0), b = operand(value, 1);
  if (is_first(a)) return std::pair(a, b);
  if (is_first(b)) return std::pair(b, a);
  return std::nullopt;
}

// The two sides of x - y, also where it is still x + (-y).
std::optional<std::pair<Value, Value>> difference_sides(Value value) {
  if (is(value, "sub")) return std::pair(operand(value, 0), operand(value, 1));
  const auto sides = ordered(value, "add", [](Value v) { return is(v, "neg"); });
  if (!sides) return std::nullopt;
  return std::pair(sides->second, operand(sides->first, 0));
}

// With y = w / b and s = sum(g * y): (g / b - s / b) * w = (g - s) * y.
Value softmax_gradient(Builder&, const Node& node, Operands in) {
  if (!is(node, "mul")) return {};
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const auto difference = difference_sides(in[i]);
    const Value w = in[1 - i];
    if (!difference) continue;
    const auto& [scaled_g, scaled_s] = *difference;
    if (!is(scaled_g, "div") || !is(scaled_s, "div")) continue;
    const Value g = operand(scaled_g, 0), b = operand(scaled_g, 1), s = operand(scaled_s, 0);
    if (operand(scaled_s, 1).id != b.id || !is(s, "reduce_sum")) continue;
    const auto product = ordered(operand(s, 0), "mul", [&](Value v) { return v.id == g.id; });
    if (!product) continue;
    const Value y = product->second;
    if (!is(y, "div") || operand(y, 0).id != w.id || operand(y, 1).id != b.id) continue;
    if (y.type() == node.type && g.type() == node.type) return ops::mul(ops::sub(g, s), y);
  }
  return {};
}

constexpr Rule kRules[] = {
    {"add_zero", "x + 0 = x, but for x = -0, which the sum would turn into +0", false, add_zero},
    {"sum_of_one", "the sum of one element is that element, but for 0 + (-0)", false, sum_of_one},
    {"neg_sub", "-(x - y) = y - x, but for the sign of a zero", false, neg_sub},
    {"scale_scale", "(x * a) * b = x * (a * b), with one rounding less", false, scale_scale},
    {"add_pads",
     "two pads that leave room for each other are a concat, but for -0 + 0; the backward of slices "
     "is made of them",
     false, add_pads},
    {"add_add_pads", "the same where the first pad was added to another term before", false,
     add_add_pads},
    {"softmax_gradient",
     "with y = w / b, s = sum(g y): (g / b - s / b) w = (g - s) y; backward then needs neither w "
     "nor b, and two operations less on the largest tensor of attention",
     false, softmax_gradient},
};

}  // namespace

std::span<const Rule> algebra_rules() { return kRules; }

}  // namespace npu
