// Element types, and the conversions between them that define every rounding of this program.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace npu {

// kPred is a truth value stored as one byte, 0 or 1.
enum class DType : uint8_t { kF32, kBF16, kF16, kI64, kI32, kU8, kPred };

size_t dtype_bytes(DType dtype);
std::string_view dtype_name(DType dtype);  // "f32", "bf16", …
std::optional<DType> parse_dtype(std::string_view name);
inline bool is_float(DType d) { return d == DType::kF32 || d == DType::kBF16 || d == DType::kF16; }

// f32 → bf16, round to nearest even; NaN stays NaN (quiet).
inline uint16_t bf16_from_f32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float f32_from_bf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
// IEEE half, round to nearest even, overflow to infinity, subnormals kept.
uint16_t f16_from_f32(float value);
float f32_from_f16(uint16_t bits);

}  // namespace npu
