// The register blocks of an AMX product, and the passes over its operands.
#include "backend/cpu_amx_pack.h"

namespace npu::cpu {
namespace amx {
namespace {

// The smaller operand stays packed in L2 while the larger one passes by in strips of kBlock.
constexpr int64_t kResidentBytes = int64_t{3} << 19;
constexpr int64_t kMaxK = 2048;
constexpr int64_t kLeastX = 128;  // resident x below which k is cut instead
constexpr int64_t kStripBytes = kMaxK / kTileK * kParts * kPart;
static_assert(kResidentBytes + 2 * kStripBytes + 2 * kBlock * kBlock * 4 <=
              static_cast<int64_t>(kAmxScratchBytes));

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

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

// One block's operands, and the packing that goes on beside: `packs` units in every `slots` turns.
struct BlockWork {
  const std::byte *left, *right;
  int64_t k_tiles;
  float* sums;  // [32][32]
  BlockPacker* packer;
  int64_t packs, slots;
};

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
    for (due += work.packs; due >= work.slots; due -= work.slots) work.packer->step();
  }
  _tile_stored(0, work.sums, kBlock * 4);
  if (two_right) _tile_stored(1, work.sums + kTileX, kBlock * 4);
  if (two_left) _tile_stored(2, work.sums + kTileX * kBlock, kBlock * 4);
  if (two_left && two_right) _tile_stored(3, work.sums + kTileX * kBlock + kTileX, kBlock * 4);
}

using MultiplyBlock = void (*)(const BlockWork&);

template <int left_parts, int right_parts>
MultiplyBlock block_of(bool two_left, bool two_right) {
  if (two_left) {
    return two_right ? multiply_block<left_parts, right_parts, true, true>
                     : multiply_block<left_parts, right_parts, true, false>;
  }
  return two_right ? multiply_block<left_parts, right_parts, false, true>
                   : multiply_block<left_parts, right_parts, false, false>;
}

MultiplyBlock find_block(int left_parts, int right_parts, bool two_left, bool two_right) {
  if (left_parts == 1) {
    return right_parts == 1 ? block_of<1, 1>(two_left, two_right)
                            : block_of<1, kParts>(two_left, two_right);
  }
  return right_parts == 1 ? block_of<kParts, 1>(two_left, two_right)
                          : block_of<kParts, kParts>(two_left, two_right);
}

// Adds a 16 × 16 piece of sums to out[row…][col…], turned when rhs was the left operand.
template <bool turned>
void add_piece(const float* sums, const AmxProduct& p, int64_t row, int64_t col) {
  const int64_t rows = smaller(16, p.m - row), cols = smaller(16, p.n - col);
  if (rows <= 0 || cols <= 0) return;
  __m512i piece[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) piece[i] = _mm512_load_si512(sums + i * kBlock);
  if constexpr (turned) transpose(piece);
  const __mmask16 lanes = low_lanes(cols);
  const __m512 alpha = _mm512_set1_ps(p.alpha);
  const bool add = p.beta != 0;
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i >= rows) break;
    float* const out = p.out + (row + i) * p.out_ld + col;
    __m512 value = _mm512_mul_ps(alpha, _mm512_castsi512_ps(piece[i]));
    if (add) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, out));
    _mm512_mask_storeu_ps(out, lanes, value);
  }
}

struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// One product. `wide` is the operand that passes by, `resident` the smaller one.
class Multiplier {
 public:
  Multiplier(const AmxProduct& product, std::byte* scratch)
      : p_(product), wide_is_lhs_(product.m > product.n) {
    // Each takes the side of its form; of two with the same form the resident one is turned, since
    // it is packed once.
    wide_is_left_ = !wide().k_rows;
    resident_ = scratch;
    for (int i = 0; i < 2; ++i) {
      strips_[i] = scratch + kResidentBytes + i * kStripBytes;
      sums_[i] = reinterpret_cast<float*>(scratch + kResidentBytes + 2 * kStripBytes) +
                 i * kBlock * kBlock;
    }
  }

  // The resident operand by as many x and k as stay in L2, in equal blocks.
  void run() {
    const int64_t resident_x = wide_is_lhs_ ? p_.n : p_.m;
    resident_parts_ = all_bf16({&resident(), 0, resident_x, 0, p_.k}) ? 1 : kParts;
    const auto equal_blocks = [](int64_t size, int64_t most, int64_t unit) {
      const int64_t blocks = (size + most - 1) / most;
      return round_up((size + blocks - 1) / blocks, unit);
    };
    const int64_t cells = kResidentBytes / (2 * resident_parts_);
    const int64_t least_x = smaller(round_up(resident_x, kBlock), kLeastX);
    const int64_t most_k = smaller(cells / least_x / kTileK * kTileK, kMaxK);
    const int64_t k_block = equal_blocks(p_.k, most_k, kTileK);
    const int64_t x_block = equal_blocks(resident_x, cells / k_block / kBlock * kBlock, kBlock);
    const float beta = p_.beta;
    for (int64_t x = 0; x < resident_x; x += x_block) {
      p_.beta = beta;
      for (int64_t k = 0; k < p_.k; k += k_block) {
        pass(x, smaller(x_block, resident_x - x), k, smaller(k_block, p_.k - k));
        p_.beta = 1;
      }
    }
  }

 private:
  const AmxOperand& wide() const { return wide_is_lhs_ ? p_.lhs : p_.rhs; }
  const AmxOperand& resident() const { return wide_is_lhs_ ? p_.rhs : p_.lhs; }

  void pass(int64_t x0, int64_t x_count, int64_t k, int64_t k_count) {
    const int64_t wide_x = wide_is_lhs_ ? p_.m : p_.n;
    const int64_t k_tiles = round_up(k_count, kTileK) / kTileK;
    const int64_t block_bytes = k_tiles * resident_parts_ * kPart;
    const int64_t blocks = round_up(x_count, kBlock) / kBlock;
    for (int64_t b = 0; b < blocks; ++b) {
      const Window window{&resident(), x0 + b * kBlock, smaller(kBlock, x_count - b * kBlock), k,
                          k_count};
      BlockPacker(window, !wide_is_left_, resident_parts_, resident_ + b * block_bytes).finish();
    }
    const auto strip = [&](int64_t x, int parts, std::byte* to) {
      return BlockPacker({&wide(), x, smaller(kBlock, wide_x - x), k, k_count}, wide_is_left_,
                         parts, to);
    };
    int parts = strip(0, 1, strips_[0]).finish();
    for (int64_t x = 0; x < wide_x; x += kBlock) {
      const int64_t turn = x / kBlock % 2;
      BlockPacker packer;
      if (x + kBlock < wide_x) packer = strip(x + kBlock, parts, strips_[1 - turn]);
      for (int64_t b = 0; b < blocks; ++b) {
        const std::byte* const block = resident_ + b * block_bytes;
        float* const sums = sums_[pending_.sums == sums_[0] ? 1 : 0];
        const BlockWork work{wide_is_left_ ? strips_[turn] : block,
                             wide_is_left_ ? block : strips_[turn],
                             k_tiles,
                             sums,
                             &packer,
                             packer.units(),
                             blocks * k_tiles};
        const bool two_wide = wide_x - x > kTileX, two_resident = x_count - b * kBlock > kTileX;
        if (wide_is_left_) {
          find_block(parts, resident_parts_, two_wide, two_resident)(work);
        } else {
          find_block(resident_parts_, parts, two_resident, two_wide)(work);
        }
        // The sums of a block are read while the next one is multiplied.
        store_pending();
        pending_ = {sums, x, x0 + b * kBlock};
      }
      if (packer.units() > 0) parts = packer.finish();
    }
    store_pending();
  }

  void store_pending() {
    if (pending_.sums == nullptr) return;
    const int64_t row = wide_is_lhs_ ? pending_.wide_x : pending_.resident_x;
    const int64_t col = wide_is_lhs_ ? pending_.resident_x : pending_.wide_x;
    const bool turned = wide_is_lhs_ != wide_is_left_;  // rhs was the left operand
    for (int64_t i = 0; i < kBlock; i += kTileX) {
      for (int64_t j = 0; j < kBlock; j += kTileX) {
        // sums[left][right]; rows of out are lhs
        if (turned) {
          add_piece<true>(pending_.sums + j * kBlock + i, p_, row + i, col + j);
        } else {
          add_piece<false>(pending_.sums + i * kBlock + j, p_, row + i, col + j);
        }
      }
    }
    pending_.sums = nullptr;
  }

  struct Pending {
    const float* sums = nullptr;
    int64_t wide_x = 0, resident_x = 0;
  };

  AmxProduct p_;
  bool wide_is_lhs_, wide_is_left_ = false;
  int resident_parts_ = kParts;
  std::byte *resident_, *strips_[2];
  float* sums_[2];
  Pending pending_;
};

}  // namespace
}  // namespace amx

void amx_multiply(const AmxProduct& product, std::byte* scratch) {
  static constexpr amx::TileConfig kConfig;
  _tile_loadconfig(&kConfig);
  amx::Multiplier(product, scratch).run();
  _tile_release();
}

}  // namespace npu::cpu
