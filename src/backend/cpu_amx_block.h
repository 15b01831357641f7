// The innermost part of an AMX product: one 32 × 32 block of the result. Included only by sources
// that are compiled for AVX-512 and AMX.
#pragma once

#include "backend/cpu_amx_pack.h"

namespace npu::cpu::amx {

// One block's operands as they lie packed, and what goes on beside.
struct BlockWork {
  const std::byte *left, *right;
  int64_t k_tiles;
  float* sums;  // [32][32]
  // Vector work that is spread between the tiles' turns, so that neither unit waits: `asides`
  // calls.
  void (*aside)(void* owner);
  void* owner;
  int64_t asides;
  // Lines of a later block that are asked for, so many a turn.
  const std::byte* ahead;
  int64_t ahead_lines;
};
using MultiplyBlock = void (*)(const BlockWork&);

// `two_left`: more than 16 x on the left.
MultiplyBlock find_block(int left_parts, int right_parts, bool two_left, bool two_right);

}  // namespace npu::cpu::amx
