// Matrix products in f32 on AMX, whose tiles multiply bf16 and add in f32: each f32 operand is cut
// into three bf16 parts whose sum it is, and the products of parts that matter are added up
// (docs/decisions/006-cpu-backend.md). Plain types only: the source is compiled for AVX-512 and
// AMX.
#pragma once

#include <cstddef>
#include <cstdint>

namespace npu::cpu {

enum class AmxDType : uint8_t { kF32, kBF16, kF16 };

// An operand as `x` (rows of lhs or columns of rhs) by k. Element (x, i) is data[x·ld + i], or with
// k_rows data[i·ld + x].
struct AmxOperand {
  const void* data = nullptr;
  int64_t ld = 0;
  AmxDType dtype = AmxDType::kF32;
  bool k_rows = false;
};

// out (m × n, f32, row major) = alpha · lhs · rhsᵀ + beta · out, with beta 0 or 1.
struct AmxProduct {
  AmxOperand lhs, rhs;
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1, beta = 0;
  float* out = nullptr;
  int64_t out_ld = 0;
};

// Bytes of scratch that amx_multiply needs, aligned to 64.
inline constexpr size_t kAmxScratchBytes = size_t{5} << 19;

// True when the CPU has AMX and the kernel lets this process use it; asks it the first time.
bool amx_available();
void amx_multiply(const AmxProduct& product, std::byte* scratch);

}  // namespace npu::cpu
