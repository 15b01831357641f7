// What a matrix product is, for the sources that compute it on AMX tiles or vector units. Plain
// types only: those sources are compiled for instruction sets that not every CPU has, and an inline
// function of theirs could be linked into code that must run everywhere.
#pragma once

#include <cstddef>
#include <cstdint>

namespace npu::cpu {

enum class OperandDType : uint8_t { kF32, kBF16, kF16 };

// An operand as `x` (rows of lhs or columns of rhs) by k. Element (x, i) is data[x·ld + i], or with
// k_rows data[i·ld + x]. With packed_parts > 0 `data` is packed in the form of the unit that
// multiplies, from a block's first x on: tiles that amx_pack wrote, or panels of bf16 (rhs only).
struct ProductOperand {
  const void* data = nullptr;
  int64_t ld = 0;
  OperandDType dtype = OperandDType::kF32;
  bool k_rows = false;
  int packed_parts = 0;
};

// out (m × n, row major) = alpha · lhs · rhsᵀ + beta · out, with beta 0 or 1. Other results than
// f32 are rounded once, from sums in f32; only vector units write them, and not every product
// (VectorUnit).
struct Product {
  ProductOperand lhs, rhs;
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1, beta = 0;
  void* out = nullptr;
  int64_t out_ld = 0;
  OperandDType out_dtype = OperandDType::kF32;
};

// Bytes of one packed panel of `cols` x with all k: rows of k, or of pairs of k, by x.
static inline constexpr int64_t panel_bytes(int64_t cols, int64_t k) {
  return (k + 1) / 2 * 2 * cols * 2;
}

// Bytes of scratch, aligned to 64, that any product needs.
inline constexpr size_t kProductScratchBytes = size_t{1} << 21;

}  // namespace npu::cpu
