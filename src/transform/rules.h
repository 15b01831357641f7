// The rule tables of the default passes, and what rules share. Private to src/transform.
#pragma once

#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "transform/passes.h"

namespace npu {

std::span<const Rule> movement_rules();    // views and copies (movement_rules.cpp)
std::span<const Rule> arithmetic_rules();  // exact identities of arithmetic (arithmetic_rules.cpp)
std::span<const Rule> algebra_rules();     // identities of real numbers only (algebra_rules.cpp)

inline const Node& node_of(Value value) { return value.builder->node(value.id); }
inline bool is(const Node& node, std::string_view op) {
  return !node.is_input() && node.op->name == op;
}
inline bool is(Value value, std::string_view op) { return is(node_of(value), op); }
// The number of a constant node; nothing for other nodes.
inline std::optional<double> constant_value(Value value) {
  if (!is(value, "constant")) return std::nullopt;
  return node_of(value).attrs.real("value");
}
// +0 and -0 are different constants here.
inline bool is_constant(Value value, double number) {
  const std::optional<double> found = constant_value(value);
  return found && *found == number && std::signbit(*found) == std::signbit(number);
}
// Of a reduction's axes, those along which there is more than one element.
inline std::vector<int64_t> long_axes(const Node& reduction, Value x) {
  std::vector<int64_t> axes = reduction.attrs.integers("axes");
  std::erase_if(axes, [&](int64_t axis) { return x.shape()[static_cast<size_t>(axis)] == 1; });
  return axes;
}
// Operand `i` of the node behind `value`.
inline Value operand(Value value, size_t i) { return {value.builder, node_of(value).inputs[i]}; }

}  // namespace npu
