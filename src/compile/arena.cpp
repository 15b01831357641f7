// Greedy placement, largest value first.
#include "compile/arena.h"

#include <algorithm>
#include <numeric>

#include "tensor/tensor.h"

namespace npu {

ArenaLayout plan_arena(const std::vector<Lifetime>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return values[a].bytes > values[b].bytes; });
  const auto padded = [&](size_t v) {
    return (values[v].bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  };

  ArenaLayout layout;
  layout.offsets.resize(values.size());
  std::vector<size_t> placed;  // by rising offset
  for (const size_t v : order) {
    size_t offset = 0;
    for (const size_t other : placed) {
      const bool together =
          values[v].first <= values[other].last && values[other].first <= values[v].last;
      if (!together) continue;
      if (offset + padded(v) <= layout.offsets[other]) break;  // the gap before it is large enough
      offset = std::max(offset, layout.offsets[other] + padded(other));
    }
    layout.offsets[v] = offset;
    layout.bytes = std::max(layout.bytes, offset + padded(v));
    const auto place = std::find_if(placed.begin(), placed.end(),
                                    [&](size_t other) { return layout.offsets[other] > offset; });
    placed.insert(place, v);
  }
  return layout;
}

}  // namespace npu
