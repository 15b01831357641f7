// Rules that remove or join movements of data. All are exact: no element is computed differently.
#include <algorithm>
#include <array>
#include <numeric>

#include "ops/ops.h"
#include "transform/rules.h"

namespace npu {
namespace {

using Operands = std::span<const Value>;

bool is_identity(const std::vector<int64_t>& perm) {
  for (size_t i = 0; i < perm.size(); ++i)
    if (perm[i] != static_cast<int64_t>(i)) return false;
  return true;
}

// With the type unchanged, these ops can only copy their operand; a transpose also permutes.
Value no_op(Builder&, const Node& node, Operands in) {
  constexpr std::array<std::string_view, 6> kCopies = {"convert", "reshape", "broadcast",
                                                       "slice",   "pad",     "concat"};
  if (in.empty() || node.type != in[0].type()) return {};
  const bool copies = std::find(kCopies.begin(), kCopies.end(), node.op->name) != kCopies.end();
  const bool stays = is(node, "transpose") && is_identity(node.attrs.integers("perm"));
  return copies || stays ? in[0] : Value{};
}

Value transpose_transpose(Builder&, const Node& node, Operands in) {
  if (!is(node, "transpose") || !is(in[0], "transpose")) return {};
  const std::vector<int64_t>& inner = node_of(in[0]).attrs.integers("perm");
  std::vector<int64_t> perm = node.attrs.integers("perm");
  for (int64_t& axis : perm) axis = inner[static_cast<size_t>(axis)];
  return ops::transpose(operand(in[0], 0), std::move(perm));
}

Value reshape_reshape(Builder&, const Node& node, Operands in) {
  if (!is(node, "reshape") || !is(in[0], "reshape")) return {};
  return ops::reshape(operand(in[0], 0), node.type.shape);
}

Value broadcast_broadcast(Builder&, const Node& node, Operands in) {
  if (!is(node, "broadcast") || !is(in[0], "broadcast")) return {};
  return ops::broadcast(operand(in[0], 0), node.type.shape);
}

Value slice_slice(Builder&, const Node& node, Operands in) {
  if (!is(node, "slice") || !is(in[0], "slice")) return {};
  const std::vector<int64_t>& offset = node_of(in[0]).attrs.integers("starts");
  std::vector<int64_t> starts = node.attrs.integers("starts");
  std::vector<int64_t> limits = node.attrs.integers("limits");
  for (size_t d = 0; d < offset.size(); ++d) {
    starts[d] += offset[d];
    limits[d] += offset[d];
  }
  return ops::slice(operand(in[0], 0), std::move(starts), std::move(limits));
}

// concat of slices that tile x in order.
Value concat_slices(Builder&, const Node& node, Operands in) {
  if (!is(node, "concat") || !is(in[0], "slice")) return {};
  const Value whole = operand(in[0], 0);
  if (whole.type() != node.type) return {};
  const size_t axis = static_cast<size_t>(node.attrs.integer("axis"));
  int64_t next = 0;
  for (Value part : in) {
    if (!is(part, "slice") || operand(part, 0).id != whole.id) return {};
    if (node_of(part).attrs.integers("starts")[axis] != next) return {};
    next += part.shape()[axis];
  }
  return next == whole.shape()[axis] ? whole : Value{};
}

// Elementwise ops repeat dimensions of size 1 by themselves.
Value implicit_broadcast(Builder& builder, const Node& node, Operands in) {
  if (!node.op->traits.elementwise || in.size() < 2) return {};
  for (size_t i = 0; i < in.size(); ++i) {
    if (!is(in[i], "broadcast")) continue;
    std::vector<Value> operands(in.begin(), in.end());
    operands[i] = operand(in[i], 0);
    const Result<Value> result = builder.try_apply(*node.op, std::move(operands), node.attrs);
    if (result.ok() && result.value().type() == node.type) return result.value();
  }
  return {};
}

bool swaps_last_two(Value value) {
  if (!is(value, "transpose")) return false;
  std::vector<int64_t> perm = node_of(value).attrs.integers("perm");
  if (perm.size() < 2) return false;
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return is_identity(perm);
}

Value matmul_transpose(Builder&, const Node& node, Operands in) {
  if (!is(node, "matmul") || !(swaps_last_two(in[0]) || swaps_last_two(in[1]))) return {};
  Value lhs = in[0], rhs = in[1];
  ops::MatmulFlags flags = {node.attrs.integer("transpose_lhs", 0) != 0,
                            node.attrs.integer("transpose_rhs", 0) != 0};
  if (swaps_last_two(lhs)) {
    lhs = operand(lhs, 0);
    flags.transpose_lhs = !flags.transpose_lhs;
  }
  if (swaps_last_two(rhs)) {
    rhs = operand(rhs, 0);
    flags.transpose_rhs = !flags.transpose_rhs;
  }
  return ops::matmul(lhs, rhs, flags);
}

Value move_constant(Builder& builder, const Node& node, Operands in) {
  constexpr std::array<std::string_view, 4> kViews = {"reshape", "transpose", "broadcast", "slice"};
  if (std::find(kViews.begin(), kViews.end(), node.op->name) == kViews.end()) return {};
  if (!is(in[0], "constant")) return {};
  return ops::constant(builder, node.type, node_of(in[0]).attrs.real("value"));
}

constexpr Rule kRules[] = {
    {"no_op", "a movement or conversion that keeps the type keeps every element", true, no_op},
    {"transpose_transpose", "two permutations are one", true, transpose_transpose},
    {"reshape_reshape", "only the last shape counts", true, reshape_reshape},
    {"broadcast_broadcast", "repeating in two steps is repeating once", true, broadcast_broadcast},
    {"slice_slice", "a window of a window is a window", true, slice_slice},
    {"concat_slices", "pieces of x joined again in order are x", true, concat_slices},
    {"implicit_broadcast",
     "elementwise ops repeat size-1 dimensions themselves, so the repeated tensor need not exist",
     true, implicit_broadcast},
    {"matmul_transpose",
     "a matmul reads either operand transposed at no cost, so the transposed copy need not exist",
     true, matmul_transpose},
    {"move_constant", "a view of equal elements is a constant of the new shape", true,
     move_constant},
};

}  // namespace

std::span<const Rule> movement_rules() { return kRules; }

}  // namespace npu
