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
  const AmxOperand* from;
  int64_t x, x_count, k, k_count;
};

// Packs one unit of a window into the block at the last argument; returns the bits that a single
// part would leave out.
using Pack = uint32_t (*)(const Window&, int64_t, std::byte*);
Pack find_packing(const AmxOperand& from, bool left, int parts);

// Whether all values are bf16. Values that are not are usually found in the first row.
bool all_bf16(const Window& window);

// Packs up to 32 x of a window unit by unit, so that the work can be spread between the products of
// another strip: packing keeps the vector units busy, products the tile unit. The packed block lies
// in the order in which it is read: by 32 k, by part, two tiles.
class BlockPacker {
 public:
  BlockPacker() = default;
  BlockPacker(const Window& window, bool left, int parts, std::byte* to);

  int64_t units() const { return units_; }
  void step();
  // The number of parts that were written: one where all values are bf16 already.
  int finish();

 private:
  void start(int parts);

  Window window_{};
  bool left_ = false;
  std::byte* to_ = nullptr;
  Pack pack_ = nullptr;
  int parts_ = 1;
  int64_t units_ = 0, next_ = 0;
  uint32_t low_ = 0;
};

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
