// Softmax, and values at or without the target's column.
#include "backend/onnx_patterns.h"

#include <string_view>

namespace npu {
namespace {

using Ref = GraphWriter::Ref;

struct Pattern {
  const Graph& graph;
  const std::vector<Ref>& refs;
  GraphWriter& writer;

  bool is(NodeId id, std::string_view op) const {
    const Node& node = graph.node(id);
    return !node.is_input() && node.op->name == op;
  }
  bool is_zero(NodeId id) const {
    return is(id, "constant") && graph.node(id).attrs.real("value") == 0.0;
  }
  bool over_last(NodeId id, std::string_view op) const {
    if (!is(id, op)) return false;
    const int64_t last = static_cast<int64_t>(graph.node(id).type.shape.size()) - 1;
    return graph.node(id).attrs.integers("axes") == std::vector<int64_t>{last};
  }
  Ref ref(NodeId id) const { return refs[static_cast<size_t>(id)]; }
  Ref write(std::string_view type, std::vector<Ref> inputs, const Attrs& attrs,
            const TensorType& out) const {
    return writer.node(type, inputs, attrs, out);
  }

  std::optional<Ref> softmax(const Node& node) const;
  std::optional<NodeId> target_of(NodeId condition, NodeId x) const;
  // The column of x that each row's target names, and whether there is one: targets outside the
  // columns name none.
  struct Target {
    Ref column_R1, exists_R1, value_R1;
  };
  Target at_target(NodeId target, NodeId x) const;
  // Of a select by "is the row's target" between x, its input `side`, and zero.
  std::optional<Target> masked_at_target(const Node& select, size_t side) const;
  Ref zero() const { return writer.constant(Tensor::from_f32({1, 1}, std::vector<float>{0})); }
  std::optional<Ref> without_target(const Node& node) const;
  std::optional<Ref> target_value(const Node& node) const;
};

// exp(x − max x) / Σ exp(x − max x) along the last dimension.
std::optional<Ref> Pattern::softmax(const Node& node) const {
  const NodeId exp = node.inputs[0], sum = node.inputs[1];
  if (!is(exp, "exp") || !over_last(sum, "reduce_sum") || graph.node(sum).inputs[0] != exp) {
    return std::nullopt;
  }
  const NodeId difference = graph.node(exp).inputs[0];
  if (!is(difference, "sub")) return std::nullopt;
  const NodeId x = graph.node(difference).inputs[0];
  NodeId max = graph.node(difference).inputs[1];
  if (is(max, "stop_gradient")) max = graph.node(max).inputs[0];
  if (!over_last(max, "reduce_max") || graph.node(max).inputs[0] != x) return std::nullopt;
  return write("Softmax", {ref(x)}, {{"axis", int64_t{-1}}}, node.type);
}

// t where the node is t_R1 == column_1C.
std::optional<NodeId> Pattern::target_of(NodeId condition, NodeId x) const {
  const Node& compare = graph.node(condition);
  if (!is(condition, "compare") || compare.attrs.string("kind") != "eq" ||
      compare.type.shape != graph.node(x).type.shape) {  // x's columns, not one for all
    return std::nullopt;
  }
  const NodeId target = compare.inputs[0], column = compare.inputs[1];
  const TensorType& type = graph.node(target).type;
  if (!is(column, "iota") || graph.node(column).attrs.integer("axis") != 1) return std::nullopt;
  const Shape& columns = graph.node(column).type.shape;
  if (columns.size() != 2 || columns[0] != 1 || type.shape.size() != 2 ||
      type.dtype != DType::kI32 || type.shape[1] != 1) {
    return std::nullopt;
  }
  return target;
}

Pattern::Target Pattern::at_target(NodeId target, NodeId x) const {
  const TensorType& index = graph.node(target).type;
  const TensorType& rows = graph.node(x).type;
  const auto last = static_cast<int32_t>(rows.shape[1] - 1);
  const Ref low = writer.constant(Tensor::from_i32({1, 1}, std::vector<int32_t>{0}));
  const Ref high = writer.constant(Tensor::from_i32({1, 1}, std::vector<int32_t>{last}));
  Target at{};
  at.column_R1 = write("Min", {write("Max", {ref(target), low}, {}, index), high}, {}, index);
  at.exists_R1 = write("Equal", {at.column_R1, ref(target)}, {}, {DType::kPred, index.shape});
  at.value_R1 = write("GatherElements", {ref(x), at.column_R1}, {{"axis", int64_t{1}}},
                      {rows.dtype, index.shape});
  return at;
}

std::optional<Pattern::Target> Pattern::masked_at_target(const Node& select, size_t side) const {
  const NodeId x = select.inputs[side], other = select.inputs[3 - side];
  const auto target = target_of(select.inputs[0], x);
  if (!target || !is_zero(other) || graph.node(x).type != select.type ||
      graph.node(*target).type.shape[0] != select.type.shape[0] ||
      select.type.dtype != DType::kF32) {
    return std::nullopt;
  }
  return at_target(*target, x);
}

// select(is target, 0, x): only one value of each row changes.
std::optional<Ref> Pattern::without_target(const Node& node) const {
  const auto at = masked_at_target(node, 2);
  if (!at) return std::nullopt;
  const TensorType column{node.type.dtype, {node.type.shape[0], 1}};
  const Ref update = write("Where", {at->exists_R1, zero(), at->value_R1}, {}, column);
  return write("ScatterElements", {ref(node.inputs[2]), at->column_R1, update},
               {{"axis", int64_t{1}}}, node.type);
}

// Σ select(is target, x, 0) along the columns: one value of each row.
std::optional<Ref> Pattern::target_value(const Node& node) const {
  const NodeId chosen = node.inputs[0];
  if (!is(chosen, "select")) return std::nullopt;
  const auto at = masked_at_target(graph.node(chosen), 1);
  if (!at) return std::nullopt;
  return write("Where", {at->exists_R1, at->value_R1, zero()}, {}, node.type);
}

}  // namespace

std::optional<Ref> write_onnx_pattern(const Graph& graph, NodeId id, const std::vector<Ref>& refs,
                                      GraphWriter& writer) {
  const Pattern pattern{graph, refs, writer};
  const Node& node = graph.node(id);
  if (pattern.is(id, "div")) return pattern.softmax(node);
  if (pattern.is(id, "select")) return pattern.without_target(node);
  if (pattern.over_last(id, "reduce_sum")) return pattern.target_value(node);
  return std::nullopt;
}

}  // namespace npu
