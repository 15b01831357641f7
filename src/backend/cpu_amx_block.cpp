// The register blocks of AMX products, for each number of parts.
#include "backend/cpu_amx_block.h"

namespace npu::cpu::amx {
namespace {

template <bool two>
[[gnu::always_inline]] inline void load_left(const std::byte* tiles) {
  _tile_loadd(4, tiles, 64);
  if (two) _tile_loadd(5, tiles + kTileBytes, 64);
}
template <bool two>
[[gnu::always_inline]] inline void load_right(const std::byte* tiles) {
  _tile_loadd(6, tiles, 64);
  if (two) _tile_loadd(7, tiles + kTileBytes, 64);
}
template <bool two_left, bool two_right>
[[gnu::always_inline]] inline void multiply_tiles() {
  _tile_dpbf16ps(0, 4, 6);
  if (two_right) _tile_dpbf16ps(1, 4, 7);
  if (two_left) _tile_dpbf16ps(2, 5, 6);
  if (two_left && two_right) _tile_dpbf16ps(3, 5, 7);
}

// Sums of products of parts over 32 × 32 (or 16 on a side). Products of parts whose places add up
// to more than two lie below the last bit of an f32; the others come in the order that loads the
// fewest tiles.
template <int left_parts, int right_parts, bool two_left, bool two_right>
void multiply_block(const BlockWork& work) {
  const std::byte *left = work.left, *right = work.right;
  _tile_zero(0);
  if (two_right) _tile_zero(1);
  if (two_left) _tile_zero(2);
  if (two_left && two_right) _tile_zero(3);
  const std::byte* ahead = work.ahead;
  int64_t due = 0;
  for (int64_t t = 0; t < work.k_tiles; ++t) {
    if constexpr (left_parts == 1) {
      load_left<two_left>(left);
#pragma GCC unroll 3
      for (int q = 0; q < right_parts; ++q) {
        load_right<two_right>(right + q * kPart);
        multiply_tiles<two_left, two_right>();
      }
    } else if constexpr (right_parts == 1) {
      load_right<two_right>(right);
#pragma GCC unroll 3
      for (int p = 0; p < left_parts; ++p) {
        load_left<two_left>(left + p * kPart);
        multiply_tiles<two_left, two_right>();
      }
    } else {
      load_left<two_left>(left + 2 * kPart);  // (2,0)
      load_right<two_right>(right);
      multiply_tiles<two_left, two_right>();
      load_left<two_left>(left + kPart);  // (1,0)
      multiply_tiles<two_left, two_right>();
      load_right<two_right>(right + kPart);  // (1,1)
      multiply_tiles<two_left, two_right>();
      load_left<two_left>(left);  // (0,1)
      multiply_tiles<two_left, two_right>();
      load_right<two_right>(right + 2 * kPart);  // (0,2)
      multiply_tiles<two_left, two_right>();
      load_right<two_right>(right);  // (0,0)
      multiply_tiles<two_left, two_right>();
    }
    left += left_parts * kPart;
    right += right_parts * kPart;
    for (int64_t i = 0; i < work.ahead_lines; ++i) _mm_prefetch(ahead + i * 64, _MM_HINT_T1);
    ahead += work.ahead_lines * 64;
    for (due += work.asides; due >= work.k_tiles; due -= work.k_tiles) work.aside(work.owner);
  }
  _tile_stored(0, work.sums, kBlock * 4);
  if (two_right) _tile_stored(1, work.sums + kTileX, kBlock * 4);
  if (two_left) _tile_stored(2, work.sums + kTileX * kBlock, kBlock * 4);
  if (two_left && two_right) _tile_stored(3, work.sums + kTileX * kBlock + kTileX, kBlock * 4);
}

template <int left_parts, int right_parts>
MultiplyBlock block_of(bool two_left, bool two_right) {
  if (two_left) {
    return two_right ? multiply_block<left_parts, right_parts, true, true>
                     : multiply_block<left_parts, right_parts, true, false>;
  }
  return two_right ? multiply_block<left_parts, right_parts, false, true>
                   : multiply_block<left_parts, right_parts, false, false>;
}

}  // namespace

MultiplyBlock find_block(int left_parts, int right_parts, bool two_left, bool two_right) {
  if (left_parts == 1) {
    return right_parts == 1 ? block_of<1, 1>(two_left, two_right)
                            : block_of<1, kParts>(two_left, two_right);
  }
  return right_parts == 1 ? block_of<kParts, 1>(two_left, two_right)
                          : block_of<kParts, kParts>(two_left, two_right);
}

}  // namespace npu::cpu::amx
