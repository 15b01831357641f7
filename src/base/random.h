// Counter-based random numbers: the value at (seed, index) depends on nothing else, so any order of
// drawing, and any subset, gives the same numbers on every platform.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace npu {

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
inline uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// A stream named by a seed and a word (a tensor's name).
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name) : key_(mix64(seed)) {
    for (const char c : name) key_ = mix64(key_ ^ static_cast<unsigned char>(c));
  }
  uint64_t bits(uint64_t index) const { return mix64(key_ ^ mix64(index)); }
  // In [0, 1), 53 bits.
  double uniform(uint64_t index) const {
    return static_cast<double>(bits(index) >> 11) * 0x1.0p-53;
  }
  // Standard normal by Box–Muller.
  double normal(uint64_t index) const {
    const double u = 1.0 - uniform(2 * index), v = uniform(2 * index + 1);
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
  }

 private:
  uint64_t key_;
};

}  // namespace npu
