// The few vector instructions that products need, for AVX2 and AVX-512. Included only by sources
// that are compiled for one of them. Static, so that none can be linked into other sources.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "backend/cpu_product.h"
#if defined(__AVX512F__)
#include "backend/cpu_transpose.h"
#endif

namespace npu::cpu::NPU_VECTOR_ISA {

#if defined(__AVX512F__)

using Vector = __m512;
inline constexpr int kLanes = 16;
inline constexpr int kBlockRows = 8;  // 16 sums of 32 registers: enough to hide an FMA's latency

[[gnu::always_inline]] static inline Vector zeros() { return _mm512_setzero_ps(); }
[[gnu::always_inline]] static inline Vector load(const void* from) { return _mm512_loadu_ps(from); }
[[gnu::always_inline]] static inline void store(void* to, Vector v) { _mm512_storeu_ps(to, v); }
[[gnu::always_inline]] static inline Vector repeated(float x) { return _mm512_set1_ps(x); }
[[gnu::always_inline]] static inline Vector fma(Vector a, Vector b, Vector c) {
  return _mm512_fmadd_ps(a, b, c);
}
[[gnu::always_inline]] static inline Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
[[gnu::always_inline]] static inline Vector load_bf16(const void* from) {
  const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
[[gnu::always_inline]] static inline Vector load_f16(const void* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(from)));
}
// Rounded to nearest even, as bf16_from_f32 does: a NaN stays one.
[[gnu::always_inline]] static inline void store_bf16(void* to, Vector v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i rounded = _mm512_srli_epi32(_mm512_mask_mov_epi32(up, nan, quiet), 16);
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_cvtepi32_epi16(rounded));
}
[[gnu::always_inline]] static inline void store_f16(void* to, Vector v) {
  _mm256_storeu_si256(static_cast<__m256i*>(to),
                      _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// kLanes × kLanes words: rows[i][j] becomes rows[j][i].
[[gnu::always_inline]] static inline void transpose(Vector* rows) {
  __m512i words[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) words[i] = _mm512_castps_si512(rows[i]);
  cpu::transpose(words);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = _mm512_castsi512_ps(words[i]);
}

#else  // AVX2 and FMA

using Vector = __m256;
inline constexpr int kLanes = 8;
inline constexpr int kBlockRows = 6;  // 12 sums of 16 registers

[[gnu::always_inline]] static inline Vector zeros() { return _mm256_setzero_ps(); }
[[gnu::always_inline]] static inline Vector load(const void* from) {
  return _mm256_loadu_ps(static_cast<const float*>(from));
}
[[gnu::always_inline]] static inline void store(void* to, Vector v) {
  _mm256_storeu_ps(static_cast<float*>(to), v);
}
[[gnu::always_inline]] static inline Vector repeated(float x) { return _mm256_set1_ps(x); }
[[gnu::always_inline]] static inline Vector fma(Vector a, Vector b, Vector c) {
  return _mm256_fmadd_ps(a, b, c);
}
[[gnu::always_inline]] static inline Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
[[gnu::always_inline]] static inline Vector load_bf16(const void* from) {
  const __m128i half = _mm_loadu_si128(static_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
[[gnu::always_inline]] static inline Vector load_f16(const void* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(from)));
}
[[gnu::always_inline]] static inline void store_bf16(void* to, Vector v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i rounded = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
  const __m128i low = _mm256_castsi256_si128(rounded), high = _mm256_extracti128_si256(rounded, 1);
  _mm_storeu_si128(static_cast<__m128i*>(to), _mm_packus_epi32(low, high));
}
[[gnu::always_inline]] static inline void store_f16(void* to, Vector v) {
  _mm_storeu_si128(static_cast<__m128i*>(to),
                   _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
[[gnu::always_inline]] static inline void transpose(Vector* r) {
  Vector t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
    t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = t[i];
}

#endif

// The first and the second of pairs of bf16, widened.
[[gnu::always_inline]] static inline Vector first_of_pairs(Vector pairs) {
#if defined(__AVX512F__)
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
#else
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
#endif
}
[[gnu::always_inline]] static inline Vector second_of_pairs(Vector pairs) {
  constexpr int32_t kHigh = static_cast<int32_t>(0xffff0000);
#if defined(__AVX512F__)
  const __m512i high = _mm512_and_si512(_mm512_castps_si512(pairs), _mm512_set1_epi32(kHigh));
  return _mm512_castsi512_ps(high);
#else
  const __m256i high = _mm256_and_si256(_mm256_castps_si256(pairs), _mm256_set1_epi32(kHigh));
  return _mm256_castsi256_ps(high);
#endif
}

// Words that a product is summed over: f32 values, or with AVX-512-BF16 pairs of bf16.
struct F32 {
  static constexpr int64_t kDepth = 1;  // k per word
  [[gnu::always_inline]] static inline Vector madd(Vector a, Vector b, Vector sum) {
    return fma(a, b, sum);
  }
};
#if defined(__AVX512BF16__)
struct BF16Pairs {
  static constexpr int64_t kDepth = 2;
  [[gnu::always_inline]] static inline Vector madd(Vector a, Vector b, Vector sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};
#endif

[[gnu::always_inline]] static inline float f32_of(const ProductOperand& from, int64_t index) {
  if (from.dtype == OperandDType::kF32) return static_cast<const float*>(from.data)[index];
  const uint16_t half = static_cast<const uint16_t*>(from.data)[index];
  if (from.dtype == OperandDType::kF16) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half)));
  }
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace npu::cpu::NPU_VECTOR_ISA
