// Packing for AMX: each operand from either storage order, cut into bf16 parts.
#include "backend/cpu_amx_pack.h"

namespace npu::cpu::amx {
namespace {

template <OperandDType dtype>
[[gnu::always_inline]] inline __m512 load(const void* data, int64_t index, __mmask16 lanes) {
  if constexpr (dtype == OperandDType::kF32) {
    return _mm512_maskz_loadu_ps(lanes, static_cast<const float*>(data) + index);
  } else {
    const __m256i half =
        _mm256_maskz_loadu_epi16(lanes, static_cast<const uint16_t*>(data) + index);
    if constexpr (dtype == OperandDType::kF16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
}

constexpr int32_t kHighMask = static_cast<int32_t>(0xffff0000);

// What is left of x below its bf16 part, which is cut by truncation: nothing overflows, and three
// parts are the whole f32. An infinity or NaN has no rest: ∞ - ∞ would be NaN.
[[gnu::always_inline]] inline __m512 below(__m512 x) {
  const __m512i exponent = _mm512_set1_epi32(0x7f800000);
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i high = _mm512_and_si512(bits, _mm512_set1_epi32(kHighMask));
  const __mmask16 finite = _mm512_cmpneq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
  return _mm512_maskz_sub_ps(finite, x, _mm512_castsi512_ps(high));
}

// The bf16 parts of two vectors, as the pairs (a[i], b[i]) or as a then b.
[[gnu::always_inline]] inline __m512i pairs(__m512 a, __m512 b) {
  const __m512i high = _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(kHighMask));
  return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(a), 16), high);
}
[[gnu::always_inline]] inline __m512i in_row(__m512 a, __m512 b) {
  alignas(64) static constexpr uint16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                                    23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                                    45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(_mm512_castps_si512(a), _mm512_load_si512(kOdd),
                                   _mm512_castps_si512(b));
}

// The vectors of one tile row: two vectors of a row of x (32 k), or of two rows of k (16 x).
template <OperandDType dtype, bool k_rows>
struct RowLoader {
  RowLoader(const Window& w, int64_t x, int64_t k)
      : data(w.from->data), ld(w.from->ld), x_count(w.x_count - x), k_count(w.k_count - k) {
    first = k_rows ? (w.k + k) * ld + w.x + x : (w.x + x) * ld + w.k + k;
    lanes_a = low_lanes(k_rows ? x_count : k_count);
    lanes_b = k_rows ? lanes_a : low_lanes(k_count - 16);
    whole = x_count >= kTileX && k_count >= kTileK;
  }
  void read(int64_t i, __m512& a, __m512& b) const {
    const int64_t at = first + (k_rows ? 2 * i : i) * ld;
    if (whole) {
      a = load<dtype>(data, at, kAll);
      b = load<dtype>(data, at + (k_rows ? ld : 16), kAll);
      return;
    }
    a = b = _mm512_setzero_ps();
    if (k_rows ? 2 * i < k_count : i < x_count) a = load<dtype>(data, at, lanes_a);
    if (k_rows ? 2 * i + 1 < k_count : i < x_count) {
      b = load<dtype>(data, at + (k_rows ? ld : 16), lanes_b);
    }
  }

  static constexpr __mmask16 kAll = 0xffff;
  const void* data;
  int64_t ld, x_count, k_count, first;
  __mmask16 lanes_a, lanes_b;
  bool whole;
};

template <bool k_rows>
[[gnu::always_inline]] inline __m512i tile_row(__m512 a, __m512 b) {
  return k_rows ? pairs(a, b) : in_row(a, b);
}

uint32_t low_bits(__m512i bits) {
  return static_cast<uint32_t>(_mm512_reduce_or_epi32(bits)) & 0xffffu;
}

// bf16 stays as it is.
[[gnu::always_inline]] inline __m512i load_32_bf16(const void* data, int64_t index, int64_t count) {
  const __mmask32 lanes = count <= 0    ? 0
                          : count >= 32 ? 0xffffffffu
                                        : (1u << static_cast<unsigned>(count)) - 1u;
  return _mm512_maskz_loadu_epi16(lanes, static_cast<const uint16_t*>(data) + index);
}

// Packs one unit of a window into the block at the last argument.
using Pack = uint32_t (*)(const Window&, int64_t, std::byte*);

// The packers each do one unit of a window and return the bits that a single part would leave out.
// `to` is the packed block.

// A tile turned from the other form.
template <OperandDType dtype, bool k_rows, int parts>
uint32_t pack_turned(const Window& w, int64_t unit, std::byte* to) {
  const int64_t halves = w.x_count > kTileX ? 2 : 1;
  const int64_t half = unit % halves, t = unit / halves;
  const RowLoader<dtype, k_rows> loader(w, half * kTileX, t * kTileK);
  __m512i rows[parts][16], low = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int i = 0; i < 16; ++i) {
    __m512 a, b;
    loader.read(i, a, b);
    low = _mm512_or_si512(low, _mm512_or_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)));
#pragma GCC unroll 3
    for (int p = 0; p < parts; ++p) {
      rows[p][i] = tile_row<k_rows>(a, b);
      a = below(a);
      b = below(b);
    }
  }
  to += t * parts * kPart + half * kTileBytes;
#pragma GCC unroll 3
  for (int p = 0; p < parts; ++p) {
    transpose(rows[p]);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + p * kPart + i * 64, rows[p][i]);
  }
  return low_bits(low);
}

template <bool k_rows, int parts>
[[gnu::always_inline]] inline void store_parts(__m512 a, __m512 b, std::byte* to) {
#pragma GCC unroll 3
  for (int p = 0; p < parts; ++p) {
    _mm512_store_si512(to + p * kPart, tile_row<k_rows>(a, b));
    a = below(a);
    b = below(b);
  }
}

// A row of x for the left side: memory is read in order, which the hardware's prefetch follows.
template <OperandDType dtype, int parts>
uint32_t pack_row(const Window& w, int64_t unit, std::byte* to) {
  __m512i low = _mm512_setzero_si512();
  to += unit / kTileX * kTileBytes + unit % kTileX * 64;
  const void* const data = w.from->data;
  const int64_t first = (w.x + unit) * w.from->ld + w.k;
  const auto one_tile = [&](int64_t k, __mmask16 lanes_a, __mmask16 lanes_b) {
    const __m512 a = load<dtype>(data, first + k, lanes_a);
    const __m512 b = load<dtype>(data, first + k + 16, lanes_b);
    low = _mm512_or_si512(low, _mm512_or_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)));
    store_parts<false, parts>(a, b, to);
    to += parts * kPart;
  };
  const int64_t count = unit < w.x_count ? w.k_count : 0;
  int64_t k = 0;
  for (; k + kTileK <= count; k += kTileK) one_tile(k, 0xffff, 0xffff);
  for (; k < w.k_count; k += kTileK) one_tile(k, low_lanes(count - k), low_lanes(count - k - 16));
  return low_bits(low);
}

uint32_t copy_row(const Window& w, int64_t unit, std::byte* to) {
  to += unit / kTileX * kTileBytes + unit % kTileX * 64;
  const int64_t first = (w.x + unit) * w.from->ld + w.k;
  const int64_t count = unit < w.x_count ? w.k_count : 0;
  const auto* const soon = static_cast<const uint16_t*>(w.from->data) + first + kBlock * w.from->ld;
  for (int64_t k = 0; k < w.k_count; k += kTileK, to += kPart) {
    _mm_prefetch(reinterpret_cast<const char*>(soon + k), _MM_HINT_T1);
    _mm512_store_si512(to, load_32_bf16(w.from->data, first + k, count - k));
  }
  return 0;
}

constexpr int64_t kPairRows = 8;

// Some rows of k for the right side. Hardware does not foresee the long strides between them: one
// line of each pair of lines is asked for in advance, the other comes with it.
template <OperandDType dtype, int parts>
uint32_t pack_pairs(const Window& w, int64_t unit, std::byte* to) {
  constexpr int64_t kPairs = kPairRows / 2, kAheadRows = 32;
  constexpr int64_t kElement = dtype == OperandDType::kF32 ? 4 : 2;
  __m512i low = _mm512_setzero_si512();
  const int64_t k = unit * kPairRows;
  to += k / kTileK * parts * kPart + k % kTileK / 2 * 64;
  const char* const soon = static_cast<const char*>(w.from->data) +
                           ((w.k + k + kAheadRows) * w.from->ld + w.x) * kElement;
  for (int64_t r = 0; r < kPairRows; ++r) {
    _mm_prefetch(soon + r * w.from->ld * kElement, _MM_HINT_T1);
  }
  for (int64_t x = 0; x < w.x_count; x += kTileX) {
    const RowLoader<dtype, true> loader(w, x, k);
    for (int i = 0; i < kPairs; ++i) {
      __m512 a, b;
      loader.read(i, a, b);
      low = _mm512_or_si512(low, _mm512_or_si512(_mm512_castps_si512(a), _mm512_castps_si512(b)));
      store_parts<true, parts>(a, b, to + x / kTileX * kTileBytes + i * 64);
    }
  }
  return low_bits(low);
}

// The same of bf16, 32 x at a time.
uint32_t copy_pairs(const Window& w, int64_t unit, std::byte* to) {
  constexpr int64_t kAheadRows = 32;
  alignas(64) static constexpr uint16_t kLow[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                    37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                    11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
  const __m512i low = _mm512_load_si512(kLow);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  const int64_t k = unit * kPairRows, ld = w.from->ld;
  to += k / kTileK * kPart + k % kTileK / 2 * 64;
  const auto* const from = static_cast<const uint16_t*>(w.from->data) + (w.k + k) * ld + w.x;
  for (int64_t r = 0; r < kPairRows; ++r) {
    _mm_prefetch(reinterpret_cast<const char*>(from + (r + kAheadRows) * ld), _MM_HINT_T1);
  }
  for (int64_t r = 0; r < kPairRows; r += 2, to += 64) {
    const int64_t left = w.k_count - k - r;
    const __m512i a = load_32_bf16(from, r * ld, left > 0 ? w.x_count : 0);
    const __m512i b = load_32_bf16(from, (r + 1) * ld, left > 1 ? w.x_count : 0);
    _mm512_store_si512(to, _mm512_permutex2var_epi16(a, low, b));
    if (w.x_count > kTileX) {
      _mm512_store_si512(to + kTileBytes, _mm512_permutex2var_epi16(a, high, b));
    }
  }
  return 0;
}

// Rows of x are the left tile's form, pairs of rows of k the right one's; the other is turned.
template <OperandDType dtype, int parts>
Pack packing_of(bool k_rows, bool left) {
  if (k_rows) return left ? pack_turned<dtype, true, parts> : pack_pairs<dtype, parts>;
  return left ? pack_row<dtype, parts> : pack_turned<dtype, false, parts>;
}

template <OperandDType dtype>
bool row_is_bf16(const void* data, int64_t first, int64_t count) {
  __m512i bits = _mm512_setzero_si512();
  for (int64_t i = 0; i < count; i += 16) {
    const __m512 v = load<dtype>(data, first + i, low_lanes(count - i));
    bits = _mm512_or_si512(bits, _mm512_castps_si512(v));
  }
  return low_bits(bits) == 0;
}

Pack find_packing(const ProductOperand& from, bool left, int parts) {
  switch (from.dtype) {
    case OperandDType::kF32:
      return parts == 1 ? packing_of<OperandDType::kF32, 1>(from.k_rows, left)
                        : packing_of<OperandDType::kF32, kParts>(from.k_rows, left);
    case OperandDType::kF16:
      return parts == 1 ? packing_of<OperandDType::kF16, 1>(from.k_rows, left)
                        : packing_of<OperandDType::kF16, kParts>(from.k_rows, left);
    case OperandDType::kBF16:
      if (from.k_rows != left) return left ? copy_row : copy_pairs;
      break;
  }
  return packing_of<OperandDType::kBF16, 1>(from.k_rows, left);
}

}  // namespace

bool all_bf16(const Window& w) {
  const ProductOperand& from = *w.from;
  if (from.dtype == OperandDType::kBF16) return true;
  const auto row_fits = from.dtype == OperandDType::kF32 ? row_is_bf16<OperandDType::kF32>
                                                         : row_is_bf16<OperandDType::kF16>;
  const int64_t rows = from.k_rows ? w.k_count : w.x_count;
  const int64_t cols = from.k_rows ? w.x_count : w.k_count;
  const int64_t first = from.k_rows ? w.k * from.ld + w.x : w.x * from.ld + w.k;
  for (int64_t r = 0; r < rows; ++r) {
    if (!row_fits(from.data, first + r * from.ld, cols)) return false;
  }
  return true;
}

int pack_block(const Window& window, bool left, int parts, std::byte* to, bool exactly) {
  if (window.from->dtype == OperandDType::kBF16) parts = 1;
  const int64_t k_tiles = (window.k_count + kTileK - 1) / kTileK;
  const int64_t halves = window.x_count > kTileX ? 2 : 1;
  const int64_t units = window.from->k_rows == left ? halves * k_tiles  // of pack_turned
                        : left                      ? halves * kTileX
                                                    : k_tiles * (kTileK / kPairRows);
  const Pack pack = find_packing(*window.from, left, parts);
  uint32_t low = 0;
  for (int64_t i = 0; i < units; ++i) low |= pack(window, i, to);
  if (parts > 1 || low == 0) return parts;
  return exactly ? 0 : pack_block(window, left, kParts, to);
}

}  // namespace npu::cpu::amx
