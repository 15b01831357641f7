// Placing values that live for a while in one block of memory.
#pragma once

#include <cstddef>
#include <vector>

namespace npu {

// A value of `bytes` that is in use from step `first` to step `last`, both included.
struct Lifetime {
  size_t bytes = 0;
  int first = 0, last = 0;
};

struct ArenaLayout {
  std::vector<size_t> offsets;  // by value, multiples of kBufferAlignment
  size_t bytes = 0;
};

// Values whose lifetimes overlap don't overlap in memory. Greedy: the largest value first, each at
// the lowest free place.
ArenaLayout plan_arena(const std::vector<Lifetime>& values);

}  // namespace npu
