// What the fakes of vendors' libraries get wrong on demand: products in bf16, all of them or those
// by constants.
#pragma once

#include <bit>
#include <cstdint>

#ifdef FAKE_ROUNDS
constexpr bool kRounds = true;
#else
constexpr bool kRounds = false;
#endif
#ifdef FAKE_ROUNDS_CONSTANTS
constexpr bool kRoundsConstants = true;
#else
constexpr bool kRoundsConstants = false;
#endif

[[maybe_unused]] static float rounded(float value, bool rounds) {
  if (!rounds) return value;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x8000u) & 0xffff0000u);
}
