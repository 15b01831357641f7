// The words of operands in the order in which vector products read them. Included only by
// cpu_vector.cpp, once per instruction set.
#pragma once

#include "backend/cpu_vector_isa.h"

namespace npu::cpu::NPU_VECTOR_ISA {

inline constexpr int64_t kPanelCols = 2 * kLanes;

// `x_count` × `k_count` values of an operand from (x, k) on.
struct Window {
  const ProductOperand& from;
  int64_t x, x_count, k, k_count;
  int64_t index(int64_t row, int64_t i) const {
    return from.k_rows ? (k + i) * from.ld + x + row : (x + row) * from.ld + k + i;
  }
};

template <class Unit>
[[gnu::always_inline]] static inline int64_t words_of(int64_t k) {
  return (k + Unit::kDepth - 1) / Unit::kDepth;
}

// One word, zero beyond the window's k.
template <class Unit>
[[gnu::always_inline]] static inline uint32_t word(const Window& w, int64_t row, int64_t i) {
  uint32_t bits = 0;
  if constexpr (Unit::kDepth == 1) {
    const float value = f32_of(w.from, w.index(row, i));
    std::memcpy(&bits, &value, sizeof(bits));
  } else {
    const auto* const data = static_cast<const uint16_t*>(w.from.data);
    bits = data[w.index(row, 2 * i)];
    if (2 * i + 1 < w.k_count) bits |= static_cast<uint32_t>(data[w.index(row, 2 * i + 1)]) << 16;
  }
  return bits;
}

// kLanes words that lie one after the other.
template <class Unit, OperandDType dtype>
[[gnu::always_inline]] static inline Vector load_words(const ProductOperand& from, int64_t index) {
  if constexpr (dtype == OperandDType::kF32) {
    return load(static_cast<const float*>(from.data) + index);
  } else {
    const auto* const at = static_cast<const uint16_t*>(from.data) + index;
    if constexpr (Unit::kDepth == 2) return load(at);
    return dtype == OperandDType::kBF16 ? load_bf16(at) : load_f16(at);
  }
}

// Word i of kLanes x, which lie side by side.
template <class Unit, OperandDType dtype>
[[gnu::always_inline]] static inline Vector load_side_by_side(const Window& w, int64_t row,
                                                              int64_t i) {
  if constexpr (Unit::kDepth == 1) {
    return load_words<Unit, dtype>(w.from, w.index(row, i));
  } else {
#if defined(__AVX512BF16__)
    const auto* const at = static_cast<const uint16_t*>(w.from.data) + w.index(row, 2 * i);
    const auto half = [](const uint16_t* p) {
      return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    };
    const __m512i second = _mm512_slli_epi32(half(at + w.from.ld), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(half(at), second));
#endif
  }
}

// As many of the first `whole` words of kLanes x, which lie in rows of x, as fill vectors. Returns
// their number.
template <class Unit, OperandDType dtype>
int64_t pack_turned(const Window& w, int64_t row, int64_t whole, uint32_t* to) {
  // bf16 that is to be f32 is turned in pairs, at half the cost.
  constexpr bool kByPairs = Unit::kDepth == 1 && dtype == OperandDType::kBF16;
  constexpr int64_t kStep = kByPairs ? 2 * kLanes : kLanes;  // words
  int64_t i = 0;
  for (; i + kStep <= whole; i += kStep) {
    Vector rows[kLanes];
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) {
      const int64_t index = w.index(row + r, i * Unit::kDepth);
      if constexpr (kByPairs) {
        rows[r] = load(static_cast<const uint16_t*>(w.from.data) + index);
      } else {
        rows[r] = load_words<Unit, dtype>(w.from, index);
      }
    }
    transpose(rows);
    uint32_t* const at = to + i * kPanelCols;
#pragma GCC unroll 16
    for (int r = 0; r < kLanes; ++r) {
      if constexpr (kByPairs) {
        store(at + 2 * r * kPanelCols, first_of_pairs(rows[r]));
        store(at + (2 * r + 1) * kPanelCols, second_of_pairs(rows[r]));
      } else {
        store(at + r * kPanelCols, rows[r]);
      }
    }
  }
  return i;
}

// Packs kLanes x of a window (`row` the first) as [word][kPanelCols].
template <class Unit, OperandDType dtype>
void pack_lanes(const Window& w, int64_t row, uint32_t* to) {
  const int64_t whole = w.k_count / Unit::kDepth;  // words that have all their k
  int64_t i = 0;
  if (w.from.k_rows) {
    for (; i < whole; ++i) store(to + i * kPanelCols, load_side_by_side<Unit, dtype>(w, row, i));
  } else {
    i = pack_turned<Unit, dtype>(w, row, whole, to);
  }
  for (; i < words_of<Unit>(w.k_count); ++i) {
    for (int r = 0; r < kLanes; ++r) to[i * kPanelCols + r] = word<Unit>(w, row + r, i);
  }
}

template <class Unit>
void pack_few_lanes(const Window& w, int64_t row, int64_t count, uint32_t* to) {
  for (int64_t i = 0; i < words_of<Unit>(w.k_count); ++i) {
    for (int64_t r = 0; r < kLanes; ++r) {
      to[i * kPanelCols + r] = r < count ? word<Unit>(w, row + r, i) : 0;
    }
  }
}

// The right operand's panel: up to kPanelCols x as [word][kPanelCols]. Lanes that no sum needs are
// not written where a whole half of the panel is empty.
template <class Unit>
void pack_panel(const Window& w, uint32_t* to) {
  for (int64_t row = 0; row < w.x_count; row += kLanes) {
    if (w.x_count - row < kLanes) {
      pack_few_lanes<Unit>(w, row, w.x_count - row, to + row);
    } else if (w.from.dtype == OperandDType::kF32) {
      if constexpr (Unit::kDepth == 1) pack_lanes<Unit, OperandDType::kF32>(w, row, to + row);
    } else if (w.from.dtype == OperandDType::kBF16) {
      pack_lanes<Unit, OperandDType::kBF16>(w, row, to + row);
    } else if constexpr (Unit::kDepth == 1) {
      pack_lanes<Unit, OperandDType::kF16>(w, row, to + row);
    }
  }
}

// Words of the left operand: word i of row x is 32 bits at data + x·row_bytes + i·word_bytes.
struct Left {
  const std::byte* data;
  int64_t row_bytes, word_bytes;
};

// Where the operand's own memory will do, nothing is copied.
template <class Unit>
bool lies_as_words(const Window& w) {
  if (Unit::kDepth == 1) return w.from.dtype == OperandDType::kF32;
  return !w.from.k_rows && w.k_count % 2 == 0;
}

template <class Unit>
Left left_in_place(const Window& w) {
  constexpr int64_t kBytes = Unit::kDepth == 1 ? 4 : 2;
  const std::byte* const data = static_cast<const std::byte*>(w.from.data) + w.index(0, 0) * kBytes;
  const int64_t ld = w.from.ld * kBytes;
  return w.from.k_rows ? Left{data, kBytes, ld} : Left{data, ld, 4};
}

// A copy in words, in the operand's own order.
template <class Unit, OperandDType dtype>
Left copied_left(const Window& w, uint32_t* to) {
  const int64_t words = words_of<Unit>(w.k_count), whole = w.k_count / Unit::kDepth;
  const int64_t rows = w.from.k_rows ? words : w.x_count, cols = w.from.k_rows ? w.x_count : words;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t c = 0;
    if (w.from.k_rows && r < whole) {
      for (; c + kLanes <= cols; c += kLanes) {
        store(to + r * cols + c, load_side_by_side<Unit, dtype>(w, c, r));
      }
    } else if (!w.from.k_rows) {
      for (; c + kLanes <= whole; c += kLanes) {
        store(to + r * cols + c, load_words<Unit, dtype>(w.from, w.index(r, c * Unit::kDepth)));
      }
    }
    for (; c < cols; ++c) {
      to[r * cols + c] = w.from.k_rows ? word<Unit>(w, c, r) : word<Unit>(w, r, c);
    }
  }
  const auto* const data = reinterpret_cast<const std::byte*>(to);
  return w.from.k_rows ? Left{data, 4, cols * 4} : Left{data, cols * 4, 4};
}

template <class Unit>
Left left_words(const Window& w, uint32_t* scratch) {
  if (lies_as_words<Unit>(w)) return left_in_place<Unit>(w);
  if constexpr (Unit::kDepth == 1) {
    if (w.from.dtype == OperandDType::kF16)
      return copied_left<Unit, OperandDType::kF16>(w, scratch);
  }
  return copied_left<Unit, OperandDType::kBF16>(w, scratch);
}

}  // namespace npu::cpu::NPU_VECTOR_ISA
