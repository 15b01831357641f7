// Names, sizes and the half-precision conversions.
#include "tensor/dtype.h"

#include <array>

#include "base/error.h"

namespace npu {
namespace {

struct DTypeFacts {
  std::string_view name;
  size_t bytes;
};

// In the order of the enum.
constexpr std::array<DTypeFacts, 7> kFacts = {{
    {"f32", 4},
    {"bf16", 2},
    {"f16", 2},
    {"i64", 8},
    {"i32", 4},
    {"u8", 1},
    {"pred", 1},
}};

}  // namespace

size_t dtype_bytes(DType dtype) { return kFacts[static_cast<size_t>(dtype)].bytes; }

std::string_view dtype_name(DType dtype) { return kFacts[static_cast<size_t>(dtype)].name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < kFacts.size(); ++i) {
    if (kFacts[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

uint16_t f16_from_f32(float value) {
  constexpr uint32_t kInfinity = 0x7f800000u;   // of f32
  constexpr uint32_t kOverflow = 0x477ff000u;   // 65520: halfway from the largest half to 2^16
  constexpr uint32_t kMinNormal = 0x38800000u;  // 2^-14
  constexpr uint32_t kRebias = (127u - 15u) << 23;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half = 0;
  if (magnitude > kInfinity) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);  // quiet, payload kept
  } else if (magnitude >= kOverflow) {
    half = 0x7c00u;
  } else if (magnitude >= kMinNormal) {
    half = (magnitude - kRebias + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else {
    // At 0.5 one unit in the last place of f32 is 2^-24, the step of subnormal halves: the addition
    // does the rounding.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    half = std::bit_cast<uint32_t>(aligned) - std::bit_cast<uint32_t>(0.5f);
  }
  return static_cast<uint16_t>(sign | half);
}

float f32_from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa · 2^-24, exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | quiet);
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace npu
