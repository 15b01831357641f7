// Small random graphs over most of the op table, inputs for them, and comparisons of results: what
// the tests of src/transform share.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "ir/graph.h"

namespace npu {

using NamedTensors = std::map<std::string, Tensor>;

// A stream of draws.
class Dice {
 public:
  explicit Dice(uint64_t seed, std::string_view name = "dice") : stream_(seed, name) {}
  // In [0, sides).
  size_t roll(size_t sides) { return stream_.bits(next_++) % sides; }
  bool chance(double probability) { return stream_.uniform(next_++) < probability; }
  double normal() { return stream_.normal(next_++); }
  template <class List>
  auto& pick(List& list) {
    return list[roll(std::size(list))];
  }

 private:
  RandomStream stream_;
  uint64_t next_ = 0;
};

enum class RandomOps {
  kAll,     // any row, several dtypes, numbers that rules look for (0, -0, 1, powers of two)
  kSmooth,  // f32, differentiable, with moderate values: a finite difference is meaningful
};
// 3 to 40 nodes before the dead ones go, and 1 to 5 outputs "y0", "y1", …; an input may be an
// output and a node may be two. Float inputs are "x0", "x1", …; kAll adds i32 "index" [4].
Graph random_graph(uint64_t seed, RandomOps ops);

// Values for every input: normal, whole numbers 0 and 1 for other dtypes. `special` mixes in 0, -0,
// infinities and very small and large numbers.
NamedTensors random_inputs(const Graph& graph, uint64_t seed, bool special = false);

// interpret() with results by name.
NamedTensors run_graph(const Graph& graph, const NamedTensors& inputs);

// The parts one after the other, each reading inputs and earlier results by name. Every value must
// be there when a part needs it, and no part may write a name twice.
NamedTensors run_parts(const std::vector<Graph>& parts, const NamedTensors& inputs);

// "" when names, types and bits are equal (any NaN equals any NaN), else where they differ.
std::string bit_difference(const NamedTensors& got, const NamedTensors& expected);
// The same within `tolerance` relative to the tensor's largest magnitude.
std::string value_difference(const NamedTensors& got, const NamedTensors& expected,
                             double tolerance);

}  // namespace npu
