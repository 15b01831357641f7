// Arithmetic of strided views.
#include "backend/cpu_view.h"

#include <algorithm>

namespace npu::cpu {
namespace {

// Appends a loop inside `factors`, as part of the innermost one where it continues it.
void append(Factors& factors, Factor inner) {
  if (inner.size == 1) return;
  if (!factors.empty() && factors.back().stride == inner.stride * inner.size) {
    factors.back() = {factors.back().size * inner.size, inner.stride};
  } else {
    factors.push_back(inner);
  }
}

// Takes loops over `size` elements from the inner end of `factors`.
std::optional<Factors> take_inner(Factors& factors, int64_t size) {
  Factors taken;  // innermost first
  while (size > 1) {
    if (factors.empty()) return std::nullopt;
    Factor& last = factors.back();
    if (size % last.size == 0) {
      taken.push_back(last);
      size /= last.size;
      factors.pop_back();
    } else if (last.size % size == 0) {
      taken.push_back({size, last.stride});
      last = {last.size / size, last.stride * size};
      size = 1;
    } else {
      return std::nullopt;
    }
  }
  Factors result;
  for (size_t i = taken.size(); i-- > 0;) append(result, taken[i]);
  return result;
}

}  // namespace

Factors joined(const Factors& outer, const Factors& inner) {
  Factors result = outer;
  for (const Factor& factor : inner) append(result, factor);
  return result;
}

int64_t loop_count(const Factors& factors) {
  int64_t count = 1;
  for (const Factor& factor : factors) count *= factor.size;
  return count;
}

Factors View::flattened(size_t first, size_t last) const {
  Factors result;
  for (size_t d = first; d < last; ++d) result = joined(result, dims[d]);
  return result;
}

View dense_view(const Shape& shape) {
  View view;
  view.dims.resize(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1) view.dims[d] = {{shape[d], stride}};
    stride *= shape[d];
  }
  return view;
}

Shape view_shape(const View& view) {
  Shape shape;
  for (const Factors& dim : view.dims) shape.push_back(loop_count(dim));
  return shape;
}

std::optional<View> reshaped(const View& view, const Shape& shape) {
  Factors rest = view.flattened(0, view.dims.size());
  View result{view.offset, std::vector<Factors>(shape.size())};
  for (size_t d = shape.size(); d-- > 0;) {
    std::optional<Factors> dim = take_inner(rest, shape[d]);
    if (!dim) return std::nullopt;
    result.dims[d] = std::move(*dim);
  }
  return result;
}

View transposed(const View& view, const std::vector<int64_t>& perm) {
  View result{view.offset, {}};
  for (const int64_t d : perm) result.dims.push_back(view.dims[static_cast<size_t>(d)]);
  return result;
}

std::optional<View> sliced(const View& view, const std::vector<int64_t>& starts,
                           const std::vector<int64_t>& limits) {
  View result = view;
  for (size_t d = 0; d < view.dims.size(); ++d) {
    Factors& dim = result.dims[d];
    const int64_t size = limits[d] - starts[d];
    if (size == loop_count(dim)) continue;
    if (dim.size() != 1) return std::nullopt;
    result.offset += starts[d] * dim[0].stride;
    dim[0].size = size;
    if (size == 1) dim.clear();
  }
  return result;
}

View broadcast_to(const View& view, const Shape& shape) {
  View result = view;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (result.dims[d].empty() && shape[d] != 1) result.dims[d] = {{shape[d], 0}};
  }
  return result;
}

std::optional<View> view_through(const Node& node, const View& operand) {
  const std::string_view op = node.op->name;
  if (op == "stop_gradient") return operand;
  if (op == "reshape") return reshaped(operand, node.type.shape);
  if (op == "transpose") return transposed(operand, node.attrs.integers("perm"));
  if (op == "broadcast") return broadcast_to(operand, node.type.shape);
  if (op == "slice") {
    return sliced(operand, node.attrs.integers("starts"), node.attrs.integers("limits"));
  }
  return std::nullopt;
}

}  // namespace npu::cpu
