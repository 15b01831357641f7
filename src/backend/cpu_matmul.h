// Matrix products, on AMX where there is one and by BLAS elsewhere. BLAS is called with one thread:
// the split is the plan's, so that results don't depend on how many threads there are.
#pragma once

#include <cstdint>

#include "backend/cpu_plan.h"

namespace npu::cpu {

// One product of m rows and n columns over k, all of the step's or a part, with the addresses of
// its first elements.
struct GemmCall {
  const std::byte* lhs = nullptr;
  const std::byte* rhs = nullptr;
  std::byte* out = nullptr;
  DType lhs_dtype = DType::kF32, rhs_dtype = DType::kF32, out_dtype = DType::kF32;
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1;
  float* scratch = nullptr;
};

// Makes BLAS run in the calling thread. Once per process is enough; more do no harm.
void use_single_threaded_blas();
std::string blas_version();

// Scratch of a call of at most rows × cols; `wide_out` when the result is not f32.
size_t gemm_scratch_bytes(const GemmStep& step, int64_t rows, int64_t cols, bool wide_out);
void run_gemm(const GemmStep& step, const GemmCall& call);

}  // namespace npu::cpu
