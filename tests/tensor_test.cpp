// Rounding against its definition, conversions, views and differences.
#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

namespace npu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The value of a binary format with `mantissa` stored bits and `exponent` bits, by its definition.
double decode(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
  const double whole = exponent == 0 ? 0.0 : 1.0;
  return sign *
         std::ldexp(whole + std::ldexp(mantissa, -mantissa_bits), std::max(exponent, 1) - bias);
}

struct Half {
  const char* name;
  int exponent_bits, mantissa_bits;
  uint16_t (*from)(float);
  float (*to)(uint16_t);
};

class Halves : public testing::TestWithParam<Half> {};
INSTANTIATE_TEST_SUITE_P(Formats, Halves,
                         testing::Values(Half{"bf16", 8, 7, bf16_from_f32, f32_from_bf16},
                                         Half{"f16", 5, 10, f16_from_f32, f32_from_f16}),
                         [](const auto& half) { return std::string(half.param.name); });

TEST_P(Halves, DecodeAllAndRoundTrip) {
  const Half& half = GetParam();
  for (uint32_t i = 0; i <= 0xffff; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const double exact = decode(bits, half.exponent_bits, half.mantissa_bits);
    const float value = half.to(bits);
    if (std::isnan(exact)) {
      EXPECT_TRUE(std::isnan(value)) << i;
      EXPECT_TRUE(std::isnan(half.to(half.from(value)))) << i;
    } else {
      EXPECT_EQ(static_cast<double>(value), exact) << i;
      EXPECT_EQ(std::signbit(value), std::signbit(exact)) << i;
      EXPECT_EQ(half.from(value), bits) << i;
    }
  }
}

// Between each two neighbours: the midpoint goes to the even one, everything off it to the nearer.
TEST_P(Halves, RoundsToNearestEven) {
  const Half& half = GetParam();
  const auto infinity =
      static_cast<uint16_t>(((1 << half.exponent_bits) - 1) << half.mantissa_bits);
  for (uint16_t low = 0; low < infinity; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const double below = decode(low, half.exponent_bits, half.mantissa_bits);
    // The step beyond the largest finite value leads to infinity, as if the format went on.
    const double above = high == infinity
                             ? 2 * below - decode(static_cast<uint16_t>(low - 1),
                                                  half.exponent_bits, half.mantissa_bits)
                             : decode(high, half.exponent_bits, half.mantissa_bits);
    const auto middle = static_cast<float>((below + above) / 2);
    if (static_cast<double>(middle) != (below + above) / 2) {
      FAIL() << "midpoint is not an f32: " << low;
    }
    const uint16_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(half.from(middle), even) << low;
    ASSERT_EQ(half.from(std::nextafter(middle, 0.0f)), low) << low;
    ASSERT_EQ(half.from(std::nextafter(middle, kInf)), high) << low;
    ASSERT_EQ(half.from(-middle), even | 0x8000) << low;
  }
}

TEST_P(Halves, SpecialValues) {
  const Half& half = GetParam();
  EXPECT_EQ(half.to(half.from(kInf)), kInf);
  EXPECT_EQ(half.to(half.from(-kInf)), -kInf);
  EXPECT_EQ(half.to(half.from(std::numeric_limits<float>::max())), kInf);
  EXPECT_TRUE(std::isnan(half.to(half.from(kNan))));
  // A signalling NaN whose payload sits in the bits that are cut must not become infinity.
  EXPECT_TRUE(std::isnan(half.to(half.from(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(half.to(half.from(std::bit_cast<float>(0xff800001u)))));
  EXPECT_EQ(half.from(-0.0f), 0x8000);
  EXPECT_EQ(half.from(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(DType, NamesRoundTrip) {
  for (const DType d : {DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32,
                        DType::kU8, DType::kPred}) {
    EXPECT_EQ(parse_dtype(dtype_name(d)), d);
  }
  EXPECT_EQ(dtype_name(DType::kBF16), "bf16");
  EXPECT_EQ(dtype_bytes(DType::kI64), 8u);
  EXPECT_EQ(dtype_bytes(DType::kPred), 1u);
  EXPECT_FALSE(parse_dtype("f64"));
}

TEST(Tensor, OwnedIsZeroAlignedAndShared) {
  for (const int64_t rows : {0, 1, 7, 3000}) {
    Tensor a(DType::kF32, {rows, 129});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % kBufferAlignment, 0u);
    for (const float v : a.values<float>()) ASSERT_EQ(v, 0.0f);
    if (rows == 0) continue;
    const Tensor b = a;
    a.mutable_values<float>()[0] = 2;
    EXPECT_EQ(b.values<float>()[0], 2);
    EXPECT_NE(a.clone().data(), a.data());
    EXPECT_EQ(a.clone().values<float>()[0], 2);
  }
  EXPECT_FALSE(Tensor().defined());
  EXPECT_EQ(Tensor::scalar_f32(3).size(), 1);
}

TEST(Tensor, ViewsShareBytes) {
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0f);
  const Tensor a = Tensor::from_f32({4, 6}, values);
  const Tensor rows = a.rows(1, 3);
  EXPECT_EQ(rows.shape(), (Shape{2, 6}));
  EXPECT_EQ(rows.values<float>()[0], 6);
  EXPECT_EQ(rows.reshaped({3, 4}).values<float>()[11], 17);
  EXPECT_EQ(a.rows(4, 4).size(), 0);
  EXPECT_THROW(a.rows(3, 5), InternalError);
  EXPECT_THROW(a.reshaped({5, 5}), InternalError);
  EXPECT_THROW(a.values<int64_t>(), InternalError);
  Tensor view(DType::kF32, {24}, nullptr, a.data());
  EXPECT_THROW(view.mutable_data(), InternalError);
  Tensor borrowed = Tensor::borrow(DType::kF32, {24}, values.data());
  borrowed.mutable_values<float>()[3] = -1;
  EXPECT_EQ(values[3], -1);
}

TEST(Tensor, ShapesAreChecked) {
  EXPECT_EQ(num_elements({}), 1);
  EXPECT_EQ(num_elements({3, 0, 5}), 0);
  EXPECT_EQ(shape_text({128, 576}), "[128,576]");
  EXPECT_THROW(num_elements({-1}), InternalError);
  EXPECT_THROW(num_elements({int64_t{1} << 40, int64_t{1} << 40}), InternalError);
}

TEST(Tensor, ConvertsFloats) {
  const std::vector<float> values = {0.0f,  -0.0f,  1.0f, 1.00390625f, 1.01171875f,
                                     3e38f, 1e-40f, kInf, kNan};
  const Tensor f32 = Tensor::from_f32({9}, values);
  const Tensor bf16 = f32.to(DType::kBF16), f16 = f32.to(DType::kF16);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(bf16.values<uint16_t>()[i], bf16_from_f32(values[i]));
    EXPECT_EQ(f16.values<uint16_t>()[i], f16_from_f32(values[i]));
  }
  const Tensor back = bf16.to(DType::kF32);
  EXPECT_EQ(back.values<float>()[3], 1.0f);       // tie to even
  EXPECT_EQ(back.values<float>()[4], 1.015625f);  // tie to even, upwards
  EXPECT_TRUE(std::isnan(back.values<float>()[8]));
  EXPECT_EQ(f32.to(DType::kF32).values<float>()[4], values[4]);
}

TEST(Tensor, ConvertsIntegers) {
  const Tensor f =
      Tensor::from_f32({7}, std::vector<float>{-1.9f, 1.9f, 300, kNan, kInf, -kInf, 0});
  const Tensor i32 = f.to(DType::kI32), u8 = f.to(DType::kU8), pred = f.to(DType::kPred);
  EXPECT_EQ(std::vector<int32_t>(i32.values<int32_t>().begin(), i32.values<int32_t>().end()),
            (std::vector<int32_t>{-1, 1, 300, 0, INT32_MAX, INT32_MIN, 0}));
  EXPECT_EQ(u8.values<uint8_t>()[2], 255);
  EXPECT_EQ(pred.values<uint8_t>()[6], 0);
  EXPECT_EQ(pred.values<uint8_t>()[0], 1);
  EXPECT_EQ(f.to(DType::kI64).values<int64_t>()[4], INT64_MAX);
  const Tensor ids = Tensor::from_i32({2}, std::vector<int32_t>{-7, 16777217});
  EXPECT_EQ(ids.to(DType::kI64).values<int64_t>()[1], 16777217);
  EXPECT_EQ(ids.to(DType::kF32).values<float>()[0], -7.0f);
  EXPECT_EQ(ids.to(DType::kF32).values<float>()[1], 16777216.0f);
  EXPECT_EQ(pred.to(DType::kF32).values<float>()[0], 1.0f);
}

TEST(Tensor, ReadsUnalignedBytes) {
  std::vector<std::byte> bytes(9);
  const float value = 1.5f;
  std::memcpy(bytes.data() + 1, &value, 4);
  const Tensor t(DType::kF32, {2}, nullptr, bytes.data() + 1);
  EXPECT_EQ(element(t, 0), 1.5);
  EXPECT_EQ(t.to(DType::kBF16).values<uint16_t>()[0], bf16_from_f32(1.5f));
  EXPECT_THROW(t.values<float>(), InternalError);
}

TEST(Tensor, Elements) {
  for (const DType d :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32, DType::kU8}) {
    Tensor t(d, {3});
    set_element(t, 1, 42);
    EXPECT_EQ(element(t, 1), 42) << dtype_name(d);
    EXPECT_EQ(element(t, 2), 0);
    EXPECT_THROW(element(t, 3), InternalError);
  }
}

TEST(Difference, FromItsDefinition) {
  const Tensor a = Tensor::from_f32({2}, std::vector<float>{3, 4.5f});
  const Tensor b = Tensor::from_f32({2}, std::vector<float>{3, 4});
  const Difference d = difference(a, b);
  EXPECT_DOUBLE_EQ(d.max_abs, 0.5);
  EXPECT_DOUBLE_EQ(d.rel_l2, 0.1);
  EXPECT_DOUBLE_EQ(d.cosine, 27 / (std::sqrt(29.25) * 5));
  EXPECT_TRUE(d.finite);
  const Difference same = difference(b, b);
  EXPECT_EQ(same.max_abs, 0);
  EXPECT_EQ(same.rel_l2, 0);
  EXPECT_NEAR(same.cosine, 1, 1e-15);
}

TEST(Difference, ZerosAndNonFinite) {
  const Tensor zero(DType::kF32, {2});
  const Tensor one = Tensor::from_f32({2}, std::vector<float>{1, 1});
  EXPECT_EQ(difference(zero, zero).cosine, 1);
  EXPECT_EQ(difference(zero, zero).rel_l2, 0);
  EXPECT_EQ(difference(one, zero).rel_l2, INFINITY);
  EXPECT_EQ(difference(one, zero).cosine, 0);
  EXPECT_EQ(difference(zero, one).rel_l2, 1);
  const Tensor bad = Tensor::from_f32({2}, std::vector<float>{1, kNan});
  EXPECT_FALSE(difference(bad, one).finite);
  EXPECT_FALSE(difference(one, bad).finite);
  EXPECT_TRUE(std::isnan(difference(bad, one).max_abs));
  EXPECT_THROW(difference(one, Tensor(DType::kF32, {3})), InternalError);
}

}  // namespace
}  // namespace npu
