#include "backend/cpu_amx.h"

#if defined(__x86_64__)

#include <immintrin.h>

namespace npu::cpu {
namespace {

// A tile holds 16 rows of 64 bytes. The left operand's tile is 16 x by 32 k; the right one's has one
// row per pair of k, with the pair of each of 16 x side by side.
constexpr int64_t kTileX = 16, kTileK = 32, kTileBytes = 1024;
constexpr int64_t kBlock = 2 * kTileX;  // x of one register block of 2 × 2 tiles
constexpr int64_t kParts = 3;           // bf16 parts of an f32
// The smaller operand stays packed in L2 while the larger one passes by in strips.
constexpr int64_t kResidentX = 512, kResidentBytes = int64_t{3} << 19;
constexpr int64_t kMaxK = 2048;

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Tiles of one operand: for each 16 x, its parts one after the other, each k/32 tiles.
struct Panel {
  std::byte* data;
  int64_t k_tiles;
  int parts[kResidentX / kTileX];  // by block of 16 x, how many are not zero
  std::byte* tile(int64_t x_block, int part, int64_t k_tile) const {
    return data + ((x_block * kParts + part) * k_tiles + k_tile) * kTileBytes;
  }
};

// ---- packing -----------------------------------------------------------------------------------

__mmask16 low_lanes(int64_t count) {
  if (count <= 0) return 0;
  return count >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << count) - 1);
}

template <AmxDType dtype>
__m512 load(const void* data, int64_t index, __mmask16 lanes) {
  if constexpr (dtype == AmxDType::kF32) {
    return _mm512_maskz_loadu_ps(lanes, static_cast<const float*>(data) + index);
  } else {
    const __m256i half =
        _mm256_maskz_loadu_epi16(lanes, static_cast<const uint16_t*>(data) + index);
    if constexpr (dtype == AmxDType::kF16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
}

const int32_t kHighMask = static_cast<int32_t>(0xffff0000);

// What is left of x below its part `part` (cut by truncation, so that nothing overflows and three parts
// are the whole f32). An infinity or NaN has no rest: ∞ - ∞ would be NaN.
template <int part>
__m512 rest(__m512 x) {
  const __m512i exponent = _mm512_set1_epi32(0x7f800000);
  for (int i = 0; i < part; ++i) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i high = _mm512_and_si512(bits, _mm512_set1_epi32(kHighMask));
    const __mmask16 finite =
        _mm512_cmpneq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
    x = _mm512_maskz_sub_ps(finite, x, _mm512_castsi512_ps(high));
  }
  return x;
}

// The bf16 of two vectors, as the pairs (a[i], b[i]) or as a then b.
__m512i pairs(__m512 a, __m512 b) {
  const __m512i high = _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(kHighMask));
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(a), 16), high);
}
__m512i in_row(__m512 a, __m512 b) {
  alignas(64) static constexpr uint16_t kOdd[32] = {
      1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
      33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(_mm512_castps_si512(a), _mm512_load_si512(kOdd),
                                   _mm512_castps_si512(b));
}

// 16 × 16 words of 32 bits.
void transpose(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// One tile of one part. `low` collects the bits that a first part leaves out.
template <AmxDType dtype, bool k_rows, bool turn, int part>
void pack_tile(const AmxOperand& from, int64_t x, int64_t x_count, int64_t k, int64_t k_count,
               std::byte* to, __m512i& low) {
  __m512i rows[16];
  for (int i = 0; i < 16; ++i) {
    __m512 a = _mm512_setzero_ps(), b = a;
    if constexpr (k_rows) {  // two rows of k
      const __mmask16 lanes = low_lanes(x_count);
      if (2 * i < k_count) a = load<dtype>(from.data, (k + 2 * i) * from.ld + x, lanes);
      if (2 * i + 1 < k_count) b = load<dtype>(from.data, (k + 2 * i + 1) * from.ld + x, lanes);
    } else if (i < x_count) {
      a = load<dtype>(from.data, (x + i) * from.ld + k, low_lanes(k_count));
      b = load<dtype>(from.data, (x + i) * from.ld + k + 16, low_lanes(k_count - 16));
    }
    if constexpr (part == 0 && dtype != AmxDType::kBF16) {
      low = _mm512_or_si512(low, _mm512_or_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)));
    }
    a = rest<part>(a);
    b = rest<part>(b);
    rows[i] = k_rows ? pairs(a, b) : in_row(a, b);
  }
  if constexpr (turn) transpose(rows);
  for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * 64, rows[i]);
}

template <AmxDType dtype, bool k_rows, bool turn>
void pack(const AmxOperand& from, int64_t x0, int64_t x_count, int64_t k0, int64_t k_count,
          Panel& panel) {
  for (int64_t x = 0; x < x_count; x += kTileX) {
    const int64_t block = x / kTileX;
    const auto tiles = [&](auto pack_one, int part) {
      for (int64_t t = 0; t < panel.k_tiles; ++t) {
        pack_one(from, x0 + x, smaller(kTileX, x_count - x), k0 + t * kTileK,
                 smaller(kTileK, k_count - t * kTileK), panel.tile(block, part, t));
      }
    };
    __m512i low = _mm512_setzero_si512();
    const auto part_of = [&low](auto pack_part) {
      return [&low, pack_part](auto... args) { pack_part(args..., low); };
    };
    tiles(part_of(pack_tile<dtype, k_rows, turn, 0>), 0);
    panel.parts[block] = 1;
    // Values that are bf16 already have no further parts.
    if (_mm512_test_epi32_mask(low, _mm512_set1_epi32(0xffff)) == 0) continue;
    tiles(part_of(pack_tile<dtype, k_rows, turn, 1>), 1);
    tiles(part_of(pack_tile<dtype, k_rows, turn, 2>), 2);
    panel.parts[block] = kParts;
  }
}

template <AmxDType dtype>
void pack_as(const AmxOperand& from, bool left, int64_t x0, int64_t x_count, int64_t k0,
             int64_t k_count, Panel& panel) {
  // Rows of x are the left tile's form, pairs of rows of k the right one's; the other is turned.
  if (from.k_rows) {
    left ? pack<dtype, true, true>(from, x0, x_count, k0, k_count, panel)
         : pack<dtype, true, false>(from, x0, x_count, k0, k_count, panel);
  } else {
    left ? pack<dtype, false, false>(from, x0, x_count, k0, k_count, panel)
         : pack<dtype, false, true>(from, x0, x_count, k0, k_count, panel);
  }
}

void pack_operand(const AmxOperand& from, bool left, int64_t x0, int64_t x_count, int64_t k0,
                  int64_t k_count, Panel& panel) {
  panel.k_tiles = round_up(k_count, kTileK) / kTileK;
  switch (from.dtype) {
    case AmxDType::kF32:
      return pack_as<AmxDType::kF32>(from, left, x0, x_count, k0, k_count, panel);
    case AmxDType::kBF16:
      return pack_as<AmxDType::kBF16>(from, left, x0, x_count, k0, k_count, panel);
    case AmxDType::kF16:
      return pack_as<AmxDType::kF16>(from, left, x0, x_count, k0, k_count, panel);
  }
}

// ---- multiplying -------------------------------------------------------------------------------

// 32 × 32 (or 16 wide) sums of products of parts, into `sums` [32][32]. Products of parts whose places
// add up to more than two lie below the last bit of an f32.
template <bool two_left, bool two_right>
void multiply_block(const Panel& left, int64_t left_block, const Panel& right, int64_t right_block,
                    float* sums) {
  _tile_zero(0);
  if (two_right) _tile_zero(1);
  if (two_left) _tile_zero(2);
  if (two_left && two_right) _tile_zero(3);
  const int left_parts = left.parts[left_block], right_parts = right.parts[right_block];
  for (int64_t t = 0; t < left.k_tiles; ++t) {
    for (int p = 0; p < left_parts; ++p) {
      _tile_loadd(4, left.tile(left_block, p, t), 64);
      if (two_left) _tile_loadd(5, left.tile(left_block + 1, p, t), 64);
      for (int q = 0; q < right_parts && p + q < kParts; ++q) {
        _tile_loadd(6, right.tile(right_block, q, t), 64);
        if (two_right) _tile_loadd(7, right.tile(right_block + 1, q, t), 64);
        _tile_dpbf16ps(0, 4, 6);
        if (two_right) _tile_dpbf16ps(1, 4, 7);
        if (two_left) _tile_dpbf16ps(2, 5, 6);
        if (two_left && two_right) _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  _tile_stored(0, sums, kBlock * 4);
  if (two_right) _tile_stored(1, sums + kTileX, kBlock * 4);
  if (two_left) _tile_stored(2, sums + kTileX * kBlock, kBlock * 4);
  if (two_left && two_right) _tile_stored(3, sums + kTileX * kBlock + kTileX, kBlock * 4);
}

// Adds a 16 × 16 piece of sums to out[rows][cols], turned when the left operand was rhs.
void add_piece(const float* sums, bool turned, const AmxProduct& p, int64_t row, int64_t col) {
  const int64_t rows = smaller(16, p.m - row), cols = smaller(16, p.n - col);
  if (rows <= 0 || cols <= 0) return;
  __m512i piece[16];
  for (int i = 0; i < 16; ++i) piece[i] = _mm512_load_si512(sums + i * kBlock);
  if (turned) transpose(piece);
  const __mmask16 lanes = low_lanes(cols);
  const __m512 alpha = _mm512_set1_ps(p.alpha);
  for (int64_t i = 0; i < rows; ++i) {
    float* const out = p.out + (row + i) * p.out_ld + col;
    __m512 value = _mm512_mul_ps(alpha, _mm512_castsi512_ps(piece[i]));
    if (p.beta != 0) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(lanes, out));
    _mm512_mask_storeu_ps(out, lanes, value);
  }
}

struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The product with `wide` (the operand that passes by) and `resident` named by what they are.
class Multiplier {
 public:
  Multiplier(const AmxProduct& product, std::byte* scratch)
      : p_(product), wide_is_lhs_(product.m > product.n) {
    const AmxOperand& wide = wide_is_lhs_ ? p_.lhs : p_.rhs;
    // Each takes the side of its form; of two with the same form the resident one is turned, since it
    // is packed once.
    wide_is_left_ = !wide.k_rows;
    resident_.data = scratch;
    strip_.data = scratch + kResidentBytes;
    sums_ = reinterpret_cast<float*>(strip_.data + kBlock * kMaxK * 2 * kParts);
  }

  void run() {
    const int64_t resident_x = wide_is_lhs_ ? p_.n : p_.m;
    for (int64_t x = 0; x < resident_x; x += kResidentX) {
      const int64_t count = smaller(kResidentX, resident_x - x);
      const int64_t block = k_block(count);
      const float beta = p_.beta;
      for (int64_t k = 0; k < p_.k; k += block) {
        pass(x, count, k, smaller(block, p_.k - k));
        p_.beta = 1;
      }
      p_.beta = beta;
    }
  }

 private:
  // k of one pass: as many as keep the resident panel in L2, in equal blocks.
  int64_t k_block(int64_t x_count) const {
    const int64_t fit = kResidentBytes / (round_up(x_count, kTileX) * 2 * kParts) / kTileK * kTileK;
    const int64_t most = smaller(fit, kMaxK);
    const int64_t passes = (p_.k + most - 1) / most;
    return round_up((p_.k + passes - 1) / passes, kTileK);
  }

  void pass(int64_t x0, int64_t x_count, int64_t k0, int64_t k_count) {
    const AmxOperand& wide = wide_is_lhs_ ? p_.lhs : p_.rhs;
    const AmxOperand& resident = wide_is_lhs_ ? p_.rhs : p_.lhs;
    const int64_t wide_x = wide_is_lhs_ ? p_.m : p_.n;
    pack_operand(resident, !wide_is_left_, x0, x_count, k0, k_count, resident_);
    fill_missing_parts(resident_, x_count);
    for (int64_t x = 0; x < wide_x; x += kBlock) {
      const int64_t count = smaller(kBlock, wide_x - x);
      pack_operand(wide, wide_is_left_, x, count, k0, k_count, strip_);
      fill_missing_parts(strip_, count);
      for (int64_t r = 0; r < x_count; r += kBlock) {
        const bool two_wide = count > kTileX, two_resident = x_count - r > kTileX;
        block(two_wide, two_resident, r / kTileX);
        store(x, x0 + r);
      }
    }
  }

  // Pairs of blocks are read with the same number of parts.
  static void fill_missing_parts(Panel& panel, int64_t x_count) {
    for (int64_t b = 0; b + 1 < round_up(x_count, kTileX) / kTileX; b += 2) {
      for (int64_t c = b; c < b + 2; ++c) {
        if (panel.parts[c] == panel.parts[b] && panel.parts[c] == panel.parts[b + 1]) continue;
        if (panel.parts[c] == kParts) continue;
        std::byte* const start = panel.tile(c, 1, 0);
        for (int64_t i = 0; i < 2 * panel.k_tiles * kTileBytes; i += 64) {
          _mm512_store_si512(start + i, _mm512_setzero_si512());
        }
        panel.parts[c] = kParts;
      }
    }
  }

  void block(bool two_wide, bool two_resident, int64_t resident_block) {
    const Panel& left = wide_is_left_ ? strip_ : resident_;
    const Panel& right = wide_is_left_ ? resident_ : strip_;
    const int64_t left_block = wide_is_left_ ? 0 : resident_block;
    const int64_t right_block = wide_is_left_ ? resident_block : 0;
    const bool two_left = wide_is_left_ ? two_wide : two_resident;
    const bool two_right = wide_is_left_ ? two_resident : two_wide;
    if (two_left && two_right) {
      multiply_block<true, true>(left, left_block, right, right_block, sums_);
    } else if (two_left) {
      multiply_block<true, false>(left, left_block, right, right_block, sums_);
    } else if (two_right) {
      multiply_block<false, true>(left, left_block, right, right_block, sums_);
    } else {
      multiply_block<false, false>(left, left_block, right, right_block, sums_);
    }
  }

  void store(int64_t wide_x, int64_t resident_x) {
    const int64_t row = wide_is_lhs_ ? wide_x : resident_x;
    const int64_t col = wide_is_lhs_ ? resident_x : wide_x;
    const bool turned = wide_is_lhs_ != wide_is_left_;  // rhs was the left operand
    for (int64_t i = 0; i < kBlock; i += kTileX) {
      for (int64_t j = 0; j < kBlock; j += kTileX) {
        // sums[left][right]; rows of out are lhs
        const float* piece = turned ? sums_ + j * kBlock + i : sums_ + i * kBlock + j;
        add_piece(piece, turned, p_, row + i, col + j);
      }
    }
  }

  AmxProduct p_;
  bool wide_is_lhs_, wide_is_left_ = false;
  Panel resident_, strip_;
  float* sums_;
};

}  // namespace

void amx_multiply(const AmxProduct& product, std::byte* scratch) {
  static constexpr TileConfig kConfig;
  _tile_loadconfig(&kConfig);
  Multiplier(product, scratch).run();
  _tile_release();
}

}  // namespace npu::cpu

#endif
