// The table of vector steps.
#include "backend/tcl_ops.h"

namespace npu::tcl {
namespace {

using Form = VectorStep::Form;

VectorOp binary(std::string_view name, std::string op, bool exact = false) {
  return {name, true, {{Form::kUnary, std::move(op)}}, exact};
}

VectorOp unary(std::string_view name, std::string op, bool exact = false) {
  return {name, false, {{Form::kUnary, std::move(op)}}, exact};
}

const std::vector<VectorOp>& table() {
  static const std::vector<VectorOp> rows = {
      binary("add", "+"),
      binary("sub", "-"),
      binary("mul", "*"),
      binary("div", "/"),
      binary("max", "max_f", true),
      binary("min", "min_f", true),
      {"neg", false, {{Form::kNumberRight, "*", -1}}, true},
      unary("exp", "exp"),
      unary("log", "log"),
      unary("sqrt", "sqrt"),
      {"rsqrt", false, {{Form::kUnary, "sqrt"}, {Form::kNumberLeft, "/", 1}}, false},
      unary("sigmoid", "sigmoid"),
      {"convert", false, {}, false},
      unary("reduce_sum", "+"),
      unary("reduce_max", "max_f", true),
  };
  return rows;
}

}  // namespace

const VectorOp* vector_op(std::string_view name) {
  for (const VectorOp& op : table()) {
    if (op.name == name) return &op;
  }
  return nullptr;
}

std::optional<float> constant_value(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.is_input() || node.op->name != "constant") return std::nullopt;
  const auto value = static_cast<float>(node.attrs.real("value"));
  return node.type.dtype == DType::kBF16 ? f32_from_bf16(bf16_from_f32(value)) : value;
}

}  // namespace npu::tcl
