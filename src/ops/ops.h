// The vocabulary for building graphs: one builder per row of the op table (table.h), and composites
// that are made of rows and so need no rules of their own.
//
// Shapes: elementwise operands have equal rank; a dimension of size 1 is repeated to match (as in
// NumPy, but ranks are never extended). Reductions keep the reduced dimension with size 1.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace npu::ops {

// Elementwise, float unless said. Result dtype = operand dtype; one rounding per op.
Value add(Value a, Value b);
Value sub(Value a, Value b);
Value mul(Value a, Value b);
Value div(Value a, Value b);
Value max(Value a, Value b);
Value min(Value a, Value b);
Value neg(Value x);
Value exp(Value x);
Value log(Value x);
Value sqrt(Value x);
Value rsqrt(Value x);
Value sigmoid(Value x);
Value convert(Value x, DType dtype);  // the only op that changes dtype
// kind: "eq", "ne", "lt", "le", "gt", "ge"; numeric operands, result kPred.
Value compare(Value a, Value b, std::string_view kind);
Value select(Value pred, Value if_true, Value if_false);
// x, through which no gradient passes. For terms that cancel by algebra (the maximum in softmax).
Value stop_gradient(Value x);

// [..., M, K] × [..., K, N] → [..., M, N]; the flags say that an operand is stored transposed.
// Batch dimensions are equal. Accumulates in f32, rounds once to the operands' dtype.
struct MatmulFlags {
  bool transpose_lhs = false;
  bool transpose_rhs = false;
};
Value matmul(Value lhs, Value rhs, MatmulFlags flags = {});

// `axes` in rising order.
Value reduce_sum(Value x, std::vector<int64_t> axes);
Value reduce_max(Value x, std::vector<int64_t> axes);

Value reshape(Value x, Shape shape);
Value transpose(Value x, std::vector<int64_t> perm);
Value broadcast(Value x, Shape shape);  // repeats dimensions of size 1
Value slice(Value x, std::vector<int64_t> starts, std::vector<int64_t> limits);
Value concat(std::span<const Value> parts, int64_t axis);
Value pad(Value x, std::vector<int64_t> low, std::vector<int64_t> high);  // with zeros

// Rows of `table` [V, H] chosen by `indices` i32 [N] → [N, H].
Value gather(Value table, Value indices);
// i32 [N] → [N, depth] of `dtype`, 1 where the column is the index; all 0 for an index outside.
Value one_hot(Value indices, int64_t depth, DType dtype);
Value iota(Builder& builder, TensorType type, int64_t axis);
// A scalar spread over `type`; the only constant that graphs hold.
Value constant(Builder& builder, TensorType type, double value);

// ---- composites (src/ops/composite.cpp) --------------------------------------------------------
Value constant_like(Value x, double value);  // x's dtype, x's rank, all dimensions 1
Value scale(Value x, double factor);
Value add_scalar(Value x, double term);
Value silu(Value x);                // x · sigmoid(x)
Value softmax(Value x);             // over the last axis, max-subtracted
Value mean(Value x, int64_t axis);  // keeps the axis
// [x₂·(−1), x₁] with x = [x₁, x₂] split in halves of the last axis: Llama's rotate_half.
Value rotate_half(Value x);

}  // namespace npu::ops
