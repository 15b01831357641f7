// How AMX's tiles are filled: f32 values cut into bf16 parts, in the order in which products read
// them. Included only by sources that are compiled for AVX-512 and AMX.
#pragma once

#include <immintrin.h>

#include "backend/cpu_amx.h"

namespace npu::cpu::amx {

// A tile holds 16 rows of 64 bytes. The left operand's tile is 16 x by 32 k; the right one's has
// one row per pair of k, with the pair of each of 16 x side by side.
inline constexpr int64_t kTileX = 16, kTileK = 32, kTileBytes = 1024;
inline constexpr int64_t kBlock = 2 * kTileX;  // x of one register block of 2 × 2 tiles
inline constexpr int kParts = 3;               // bf16 parts of an f32
inline constexpr int64_t kPart = 2 * kTileBytes;

// A window of an operand: `x_count` × `k_count` from (x, k).
struct Window {
  const ProductOperand* from;
  int64_t x, x_count, k, k_count;
};

// Whether all values are bf16. Values that are not are usually found in the first row.
bool all_bf16(const Window& window);

// Packs up to 32 x of a window. The packed block lies in the order in which it is read: by 32 k, by
// part, two tiles. Returns the number of parts: `parts`, or three where one would leave something
// out; with `exactly` then 0 and a block of no use.
int pack_block(const Window& window, bool left, int parts, std::byte* to, bool exactly = false);

// Static, so that no code for these instructions can be linked into other sources.
[[gnu::always_inline]] static inline __mmask16 low_lanes(int64_t count) {
  if (count <= 0) return 0;
  return count >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << count) - 1);
}

// 16 × 16 words of 32 bits.
[[gnu::always_inline]] static inline void transpose(__m512i* r) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

}  // namespace npu::cpu::amx
