// Matrix products in f32 on AMX, whose tiles multiply bf16 and add in f32: each f32 operand is cut
// into three bf16 parts whose sum it is, and the products of parts that matter are added up
// (docs/decisions/006-cpu-backend.md). Plain types only: the source is compiled for AVX-512 and
// AMX.
#pragma once

#include "backend/cpu_product.h"

namespace npu::cpu {

// Tiles of the left and of the right operand hold their values in different order. kAny: whatever
// suits operands that are not packed.
enum class AmxLeft : uint8_t { kAny, kLhs, kRhs };

struct AmxProduct : Product {
  AmxLeft left = AmxLeft::kAny;
};

// A packed operand lies in blocks of 32 x, each of all k, in the order in which products read it.
inline constexpr int64_t kAmxBlock = 32;

// Below one register block there is nothing to win over BLAS.
static inline constexpr bool fills_amx(int64_t m, int64_t n, int64_t k) {
  return m >= kAmxBlock && n >= kAmxBlock && k >= kAmxBlock;
}

// bf16 parts that hold every value of a dtype.
static inline constexpr int amx_parts(OperandDType dtype) {
  return dtype == OperandDType::kBF16 ? 1 : 3;
}
static inline constexpr int64_t amx_packed_block_bytes(int64_t k, int parts) {
  return (k + 31) / 32 * parts * 2048;
}
static inline constexpr int64_t amx_packed_bytes(int64_t x, int64_t k, int parts) {
  return (x + kAmxBlock - 1) / kAmxBlock * amx_packed_block_bytes(k, parts);
}
// Packs x in [first, last), first a multiple of 16, for the left or the right side. `to` is the
// whole packed operand, aligned to 64. False when one part is asked for but the values have more.
bool amx_pack(const ProductOperand& from, bool left, int parts, int64_t first, int64_t last,
              int64_t k, std::byte* to);

// True when the CPU has AMX and the kernel lets this process use it; asks it the first time.
bool amx_available();
void amx_multiply(const AmxProduct& product, std::byte* scratch);

}  // namespace npu::cpu
