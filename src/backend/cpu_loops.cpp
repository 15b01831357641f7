// Compiled once per instruction set (NPU_LOOPS_ISA names the namespace). Loops are plain C++ that
// the compiler vectorises; nothing here may call inline functions of headers (see cpu_loops.h).
#include "backend/cpu_loops.h"

#include <math.h>

#if defined(__clang__)
#define NPU_VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define NPU_VECTORIZE _Pragma("GCC ivdep")
#endif

namespace npu::cpu::NPU_LOOPS_ISA {
namespace {

[[gnu::always_inline]] inline float mul_add(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// e^x within 1 ulp. Range reduction and polynomial of Cephes' expf (S. L. Moshier): x = n·ln2 + r
// with ln2 in two parts, e^r = 1 + r + r²·P(r), times 2^n. Results below the smallest normal number
// are 0: subnormals cost a hundred times as much and no sum of exponentials notices them.
[[gnu::always_inline]] inline float exp_f32(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5·2^23: adding it rounds to an integer
  constexpr float kLowest = -87.33654f, kHighest = 88.72283f;
  const float bounded = x < kLowest ? kLowest : (x > kHighest ? kHighest : x);
  const float shifted = mul_add(bounded, 1.44269504088896341f, kRound);
  const float n = shifted - kRound;
  const float r = mul_add(n, 2.12194440e-4f, mul_add(n, -0.693359375f, bounded));
  float p = 1.9875691500e-4f;
  p = mul_add(p, r, 1.3981999507e-3f);
  p = mul_add(p, r, 8.3334519073e-3f);
  p = mul_add(p, r, 4.1665795894e-2f);
  p = mul_add(p, r, 1.6666665459e-1f);
  p = mul_add(p, r, 5.0000001201e-1f);
  const float y = mul_add(p, r * r, r) + 1.0f;
  // 2^n in two factors, since 2^128 is no f32.
  const int32_t whole = __builtin_bit_cast(int32_t, shifted) - __builtin_bit_cast(int32_t, kRound);
  const int32_t half = whole >> 1;
  const float scale_a = __builtin_bit_cast(float, (half + 127) << 23);
  const float scale_b = __builtin_bit_cast(float, (whole - half + 127) << 23);
  const float result = y * scale_a * scale_b;
  return x < kLowest ? 0.0f : (x > kHighest ? __builtin_inff() : result);
}

[[gnu::always_inline]] inline float round_bf16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  const uint32_t quiet = (bits & 0xffff0000u) | 0x00400000u;
  return __builtin_bit_cast(float, x != x ? quiet : rounded);
}

// To the nearest half, as f32. Normal halves: like round_bf16 with 13 dropped bits. Below 2^-14 the
// step is 2^-24, which adding 0.5 rounds to. From 65520 on infinity.
[[gnu::always_inline]] inline float round_f16(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t sign = bits & 0x80000000u;
  const float magnitude = __builtin_bit_cast(float, bits & 0x7fffffffu);
  const uint32_t m = bits & 0x7fffffffu;
  const uint32_t normal = (m + 0xfffu + ((m >> 13) & 1u)) & 0xffffe000u;
  const uint32_t tiny = __builtin_bit_cast(uint32_t, (magnitude + 0.5f) - 0.5f);
  const uint32_t finite = magnitude < 6.103515625e-5f ? tiny : normal;
  const uint32_t bounded = magnitude < 65520.0f ? finite : 0x7f800000u;
  return __builtin_bit_cast(float, sign | (x != x ? (m | 0x00400000u) & 0xffffe000u : bounded));
}

[[gnu::always_inline]] inline float f32_of_f16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const float tiny = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  const uint32_t special = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? 0x400000u : 0u);
  const uint32_t finite = magnitude < 0x400u ? __builtin_bit_cast(uint32_t, tiny) : normal;
  return __builtin_bit_cast(float, sign | (magnitude < 0x7c00u ? finite : special));
}

// The bits of a half whose value `x` already is.
[[gnu::always_inline]] inline uint16_t f16_of_f32(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t m = bits & 0x7fffffffu;
  const float magnitude = __builtin_bit_cast(float, m);
  const uint32_t tiny = static_cast<uint32_t>(
      static_cast<int32_t>((magnitude < 6.103515625e-5f ? magnitude : 0.0f) * 0x1p24f));
  const uint32_t normal = (m - (112u << 23)) >> 13;
  const uint32_t special = m > 0x7f800000u ? 0x7e00u | ((m >> 13) & 0x3ffu) : 0x7c00u;
  const uint32_t finite = magnitude < 6.103515625e-5f ? tiny : normal;
  return static_cast<uint16_t>(((bits >> 16) & 0x8000u) | (m < 0x7f800000u ? finite : special));
}

// ---- elementwise -------------------------------------------------------------------------------

struct Add {
  static float of(float a, float b) { return a + b; }
};
struct Sub {
  static float of(float a, float b) { return a - b; }
};
struct Mul {
  static float of(float a, float b) { return a * b; }
};
struct Div {
  static float of(float a, float b) { return a / b; }
};
struct Max {
  static float of(float a, float b) { return (a > b) | (a != a) ? a : b; }
};
struct Min {
  static float of(float a, float b) { return (a < b) | (a != a) ? a : b; }
};
struct Neg {
  static float of(float x) { return -x; }
};
struct Exp {
  static float of(float x) { return exp_f32(x); }
};
struct Log {
  static float of(float x) { return ::logf(x); }
};
struct Sqrt {
  static float of(float x) { return __builtin_sqrtf(x); }
};
struct Rsqrt {
  static float of(float x) { return 1.0f / __builtin_sqrtf(x); }
};
struct Sigmoid {
  static float of(float x) { return 1.0f / (1.0f + exp_f32(-x)); }
};
struct Copy {
  static float of(float x) { return x; }
};
struct RoundBf16 {
  static float of(float x) { return round_bf16(x); }
};
struct RoundF16 {
  static float of(float x) { return round_f16(x); }
};
template <class F>
struct RoundedBf16 {
  template <class... T>
  static float of(T... x) {
    return round_bf16(F::of(x...));
  }
};
struct NonZero {
  static float of(float x) { return x != 0.0f ? 1.0f : 0.0f; }
};
struct FromI32 {
  static float of(int32_t x) { return static_cast<float>(x); }
};
struct PredFromI32 {
  static float of(int32_t x) { return x != 0 ? 1.0f : 0.0f; }
};
struct Eq {
  template <class T>
  static float of(T a, T b) {
    return a == b ? 1.0f : 0.0f;
  }
};
struct Ne {
  template <class T>
  static float of(T a, T b) {
    return a != b ? 1.0f : 0.0f;
  }
};
struct Lt {
  template <class T>
  static float of(T a, T b) {
    return a < b ? 1.0f : 0.0f;
  }
};
struct Le {
  template <class T>
  static float of(T a, T b) {
    return a <= b ? 1.0f : 0.0f;
  }
};
struct Gt {
  template <class T>
  static float of(T a, T b) {
    return a > b ? 1.0f : 0.0f;
  }
};
struct Ge {
  template <class T>
  static float of(T a, T b) {
    return a >= b ? 1.0f : 0.0f;
  }
};
struct Select {
  static float of(float p, float a, float b) { return p != 0.0f ? a : b; }
};

template <class T>
const T* row_of(const LoopCall& c, int operand, int64_t row) {
  return static_cast<const T*>(c.src[operand]) + row * c.src_stride[operand];
}
template <class T>
T* dst_row(const LoopCall& c, int64_t row) {
  return static_cast<T*>(c.dst) + row * c.dst_stride;
}

template <class T, class F, bool column>
void unary(const LoopCall& c) {
  for (int64_t r = 0; r < c.rows; ++r) {
    const T* a = row_of<T>(c, 0, r);
    float* d = dst_row<float>(c, r);
    const T a0 = a[0];
    NPU_VECTORIZE
    for (int64_t i = 0; i < c.cols; ++i) d[i] = F::of(column ? a0 : a[i]);
  }
}

template <class T, class F, unsigned form>
void binary(const LoopCall& c) {
  for (int64_t r = 0; r < c.rows; ++r) {
    const T *a = row_of<T>(c, 0, r), *b = row_of<T>(c, 1, r);
    float* d = dst_row<float>(c, r);
    const T a0 = a[0], b0 = b[0];
    NPU_VECTORIZE
    for (int64_t i = 0; i < c.cols; ++i) {
      d[i] = F::of((form & 1) != 0 ? a0 : a[i], (form & 2) != 0 ? b0 : b[i]);
    }
  }
}

template <class F, unsigned form>
void ternary(const LoopCall& c) {
  for (int64_t r = 0; r < c.rows; ++r) {
    const float *a = row_of<float>(c, 0, r), *b = row_of<float>(c, 1, r),
                *e = row_of<float>(c, 2, r);
    float* d = dst_row<float>(c, r);
    const float a0 = a[0], b0 = b[0], e0 = e[0];
    NPU_VECTORIZE
    for (int64_t i = 0; i < c.cols; ++i) {
      d[i] = F::of((form & 1) != 0 ? a0 : a[i], (form & 2) != 0 ? b0 : b[i],
                   (form & 4) != 0 ? e0 : e[i]);
    }
  }
}

// 1 where the column is the row's index.
void one_hot(const LoopCall& c) {
  for (int64_t r = 0; r < c.rows; ++r) {
    const int32_t index = row_of<int32_t>(c, 0, r)[0];
    float* d = dst_row<float>(c, r);
    const int32_t cols = static_cast<int32_t>(c.cols);
    NPU_VECTORIZE
    for (int32_t i = 0; i < cols; ++i) d[i] = i == index ? 1.0f : 0.0f;
  }
}

// ---- along a row -------------------------------------------------------------------------------

// Fixed lanes, so that the order of a sum is the same under every instruction set.
constexpr int64_t kLanes = 32;

struct SumOf {
  static constexpr float kStart = 0.0f;
  static float of(float sum, float x) { return sum + x; }
};
struct MaxOf {
  static constexpr float kStart = -__builtin_inff();
  static float of(float most, float x) { return (x > most) | (x != x) ? x : most; }
};

template <class F>
float reduce_piece(const float* a, int64_t count) {
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = F::kStart;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = F::of(lanes[j], a[i + j]);
  }
  for (int64_t j = 0; i + j < count; ++j) lanes[j] = F::of(lanes[j], a[i + j]);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t j = 0; j < width; ++j) lanes[j] = F::of(lanes[j], lanes[j + width]);
  }
  return lanes[0];
}

// In pieces, which keeps the error of a long sum small.
template <class F>
void reduce(const LoopCall& c) {
  constexpr int64_t kPiece = 2048;
  for (int64_t r = 0; r < c.rows; ++r) {
    const float* a = row_of<float>(c, 0, r);
    float total = F::kStart;
    for (int64_t i = 0; i < c.cols; i += kPiece) {
      total = F::of(total, reduce_piece<F>(a + i, c.cols - i < kPiece ? c.cols - i : kPiece));
    }
    dst_row<float>(c, r)[0] = total;
  }
}

// ---- between memory and registers --------------------------------------------------------------

struct LoadBf16 {
  static float of(uint16_t x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16); }
};
struct LoadF16 {
  static float of(uint16_t x) { return f32_of_f16(x); }
};
struct LoadPred {
  static float of(uint8_t x) { return x != 0 ? 1.0f : 0.0f; }
};
struct StoreBf16 {
  static uint16_t of(float x) {
    return static_cast<uint16_t>(__builtin_bit_cast(uint32_t, x) >> 16);
  }
};
struct StoreRoundedBf16 {
  static uint16_t of(float x) { return StoreBf16::of(round_bf16(x)); }
};
struct StoreF16 {
  static uint16_t of(float x) { return f16_of_f32(x); }
};
struct StorePred {
  static uint8_t of(float x) { return x != 0.0f ? 1 : 0; }
};

template <class T, class F>
void load(const LoopCall& c) {
  if (c.step != 1 && c.rows > 1 &&
      c.src_stride[0] < c.step) {  // a transposed read: rows run faster
    for (int64_t i = 0; i < c.cols; ++i) {
      const T* a = static_cast<const T*>(c.src[0]) + i * c.step;
      float* d = static_cast<float*>(c.dst) + i;
      NPU_VECTORIZE
      for (int64_t r = 0; r < c.rows; ++r) d[r * c.dst_stride] = F::of(a[r * c.src_stride[0]]);
    }
    return;
  }
  for (int64_t r = 0; r < c.rows; ++r) {
    const T* a = row_of<T>(c, 0, r);
    float* d = dst_row<float>(c, r);
    if (c.step == 1) {
      NPU_VECTORIZE
      for (int64_t i = 0; i < c.cols; ++i) d[i] = F::of(a[i]);
    } else {
      NPU_VECTORIZE
      for (int64_t i = 0; i < c.cols; ++i) d[i] = F::of(a[i * c.step]);
    }
  }
}

template <class T, class F>
void store(const LoopCall& c) {
  for (int64_t r = 0; r < c.rows; ++r) {
    const float* a = row_of<float>(c, 0, r);
    T* d = dst_row<T>(c, r);
    NPU_VECTORIZE
    for (int64_t i = 0; i < c.cols; ++i) d[i] = F::of(a[i]);
  }
}

// ---- the table ---------------------------------------------------------------------------------

template <class F, class T = float>
constexpr LoopRow unary_row(const char* name) {
  return {name, {unary<T, F, false>, unary<T, F, true>}};
}
template <class F, class T = float>
constexpr LoopRow binary_row(const char* name) {
  return {name, {binary<T, F, 0>, binary<T, F, 1>, binary<T, F, 2>, binary<T, F, 3>}};
}
template <class F>
constexpr LoopRow ternary_row(const char* name) {
  return {name,
          {ternary<F, 0>, ternary<F, 1>, ternary<F, 2>, ternary<F, 3>, ternary<F, 4>, ternary<F, 5>,
           ternary<F, 6>, ternary<F, 7>}};
}

constexpr LoopRow kRows[] = {
    binary_row<Add>("add"),
    binary_row<Sub>("sub"),
    binary_row<Mul>("mul"),
    binary_row<Div>("div"),
    binary_row<Max>("max"),
    binary_row<Min>("min"),
    unary_row<Neg>("neg"),
    unary_row<Exp>("exp"),
    unary_row<Log>("log"),
    unary_row<Sqrt>("sqrt"),
    unary_row<Rsqrt>("rsqrt"),
    unary_row<Sigmoid>("sigmoid"),
    binary_row<RoundedBf16<Add>>("add.bf16"),
    binary_row<RoundedBf16<Sub>>("sub.bf16"),
    binary_row<RoundedBf16<Mul>>("mul.bf16"),
    binary_row<RoundedBf16<Div>>("div.bf16"),
    unary_row<RoundedBf16<Exp>>("exp.bf16"),
    unary_row<RoundedBf16<Sigmoid>>("sigmoid.bf16"),
    ternary_row<Select>("select"),
    binary_row<Eq>("compare.eq"),
    binary_row<Ne>("compare.ne"),
    binary_row<Lt>("compare.lt"),
    binary_row<Le>("compare.le"),
    binary_row<Gt>("compare.gt"),
    binary_row<Ge>("compare.ge"),
    binary_row<Eq, int32_t>("compare.eq.i32"),
    binary_row<Ne, int32_t>("compare.ne.i32"),
    binary_row<Lt, int32_t>("compare.lt.i32"),
    binary_row<Le, int32_t>("compare.le.i32"),
    binary_row<Gt, int32_t>("compare.gt.i32"),
    binary_row<Ge, int32_t>("compare.ge.i32"),
    unary_row<NonZero>("convert.pred"),
    unary_row<FromI32, int32_t>("convert.i32.f32"),
    unary_row<PredFromI32, int32_t>("convert.i32.pred"),
    unary_row<RoundBf16>("round.bf16"),
    unary_row<RoundF16>("round.f16"),
    unary_row<Copy>("copy"),
    {"one_hot", {one_hot, one_hot}},
    {"row_sum", {reduce<SumOf>}},
    {"row_max", {reduce<MaxOf>}},
    {"load.f32", {load<float, Copy>}},
    {"load.i32", {load<float, Copy>}},
    {"load.bf16", {load<uint16_t, LoadBf16>}},
    {"load.f16", {load<uint16_t, LoadF16>}},
    {"load.pred", {load<uint8_t, LoadPred>}},
    {"store.bf16", {store<uint16_t, StoreBf16>}},
    {"store.rounded.bf16", {store<uint16_t, StoreRoundedBf16>}},
    {"store.f16", {store<uint16_t, StoreF16>}},
    {"store.pred", {store<uint8_t, StorePred>}},
};

constexpr const char* kIsaName =
#if defined(__AVX512F__)
    "avx512";
#elif defined(__AVX2__)
    "avx2";
#else
    "baseline";
#endif

}  // namespace

extern const LoopTable kTable;
constinit const LoopTable kTable = {kIsaName, kRows, sizeof(kRows) / sizeof(kRows[0])};

}  // namespace npu::cpu::NPU_LOOPS_ISA
