// How AMX's tiles are filled: f32 values cut into bf16 parts, in the order in which products read
// them. Included only by sources that are compiled for AVX-512 and AMX.
#pragma once

#include <immintrin.h>

#include "backend/cpu_amx.h"
#include "backend/cpu_transpose.h"

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

}  // namespace npu::cpu::amx
