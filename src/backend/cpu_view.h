// Strided views: where the elements of a value lie inside the memory of another one, so that
// reshape, transpose, slice and broadcast need no copy.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace npu::cpu {

// A loop over `size` elements that are `stride` elements apart.
struct Factor {
  int64_t size;
  int64_t stride;
  bool operator==(const Factor&) const = default;
};

// Nested loops, outermost first, none of size 1 and none that continues the one inside it. Empty:
// one element.
using Factors = std::vector<Factor>;

Factors joined(const Factors& outer, const Factors& inner);
int64_t loop_count(const Factors& factors);

// A dimension may be several loops: [B, NH, S, D] stored, read as [B·S, NH·D], has (B,S) and
// (NH,D).
struct View {
  int64_t offset = 0;  // elements before the first one
  std::vector<Factors> dims;
  bool operator==(const View&) const = default;

  // The loops of dimensions [first, last) as one.
  Factors flattened(size_t first, size_t last) const;
  Factors rows() const { return flattened(0, dims.empty() ? 0 : dims.size() - 1); }
  // The last dimension; of a scalar one element.
  Factors columns() const { return dims.empty() ? Factors{} : dims.back(); }
};

View dense_view(const Shape& shape);
Shape view_shape(const View& view);

// Nothing when a loop would have to be cut where it doesn't divide.
std::optional<View> reshaped(const View& view, const Shape& shape);
View transposed(const View& view, const std::vector<int64_t>& perm);
std::optional<View> sliced(const View& view, const std::vector<int64_t>& starts,
                           const std::vector<int64_t>& limits);
// Dimensions of size 1 repeated up to `shape`.
View broadcast_to(const View& view, const Shape& shape);

// The view of a movement node's result through its operand's view. Nothing when the op is not
// reshape, transpose, slice, broadcast or stop_gradient, or the loops don't divide.
std::optional<View> view_through(const Node& node, const View& operand);

}  // namespace npu::cpu
