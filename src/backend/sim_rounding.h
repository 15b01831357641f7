// How a simulated device rounds: to 16 bits in one of three ways, with flushed subnormals and
// canonical NaN. Plain functions on f32, so that they can be tested bit by bit.
#pragma once

#include <cstdint>
#include <span>

#include "ir/op.h"

namespace npu::sim {

// Formats that values are rounded to; all of them are subsets of f32. kDlFloat has 6 bits of
// exponent and 9 of mantissa, no subnormals.
enum class Format : uint8_t { kF32, kBF16, kF16, kDlFloat };

// kNearest: ties to even. kAway: away from zero, with a mean error of `bias` units in the last
// place over evenly spread values; what the format holds stays as it is. kTruncate: towards zero.
enum class Mode : uint8_t { kNearest, kAway, kTruncate };

struct Rounding {
  Format format = Format::kF32;
  Mode mode = Mode::kNearest;
  double bias = 0.5;  // of kAway, in [0, 1]: 0.5 always takes the next value away from zero
  double from = 0;    // of kAway: smaller magnitudes are rounded to nearest
  bool operator==(const Rounding&) const = default;
};

// What every rounding of one device has in common.
struct Specials {
  bool flush_subnormals = false;  // of f32 and of the format: to a zero of the same sign
  bool canonical_nan = false;     // every NaN becomes 0x7fc00000
  bool operator==(const Specials&) const = default;
};

// True when no value changes.
inline bool is_identity(const Rounding& rounding, const Specials& specials) {
  return rounding.format == Format::kF32 && specials == Specials{};
}

// Magnitudes beyond the format's largest become infinite. `out` may be `in`.
void round_values(std::span<const float> in, std::span<float> out, const Rounding& rounding,
                  const Specials& specials);

// The same as a node of a graph (f32, bf16 or f16 in and out): an op that only simulators know, so
// that the cpu executor can run rounded graphs.
Value rounded(Value x, const Rounding& rounding, const Specials& specials);

}  // namespace npu::sim
