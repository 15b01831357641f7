// Functions that the rows express, so they need no rules of their own.
#include "ops/ops.h"

namespace npu::ops {

Value constant_like(Value x, double value) {
  return constant(*x.builder, {x.dtype(), Shape(x.shape().size(), 1)}, value);
}

Value scale(Value x, double factor) { return mul(x, constant_like(x, factor)); }

Value add_scalar(Value x, double term) { return add(x, constant_like(x, term)); }

Value silu(Value x) { return mul(x, sigmoid(x)); }

Value softmax(Value x) {
  const std::vector<int64_t> last = {static_cast<int64_t>(x.shape().size()) - 1};
  // Any constant may be subtracted without changing the result, so no gradient passes through it.
  const Value weights = exp(sub(x, stop_gradient(reduce_max(x, last))));
  return div(weights, reduce_sum(weights, last));
}

Value mean(Value x, int64_t axis) {
  const double size = static_cast<double>(x.shape()[static_cast<size_t>(axis)]);
  return scale(reduce_sum(x, {axis}), 1.0 / size);
}

Value rotate_half(Value x) {
  const Shape& shape = x.shape();
  const int64_t half = shape.back() / 2;
  Shape middle_start(shape.size(), 0), middle_limit = shape;
  middle_start.back() = half;
  middle_limit.back() = half;
  const Value first = slice(x, Shape(shape.size(), 0), middle_limit);
  const Value second = slice(x, middle_start, shape);
  const Value parts[] = {neg(second), first};
  return concat(parts, static_cast<int64_t>(shape.size()) - 1);
}

}  // namespace npu::ops
