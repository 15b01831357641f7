// Matrix products: on AMX where there is one, on vector units, or by BLAS on a CPU that has
// neither. All run in the calling thread: the split is the plan's, so that results don't depend on
// how many threads there are.
#pragma once

#include <cstdint>

#include "backend/cpu_plan.h"

namespace npu::cpu {

// One product of m rows and n columns over k, all of the step's or a part, with the addresses of
// its first elements.
struct GemmCall {
  const std::byte* lhs = nullptr;
  const std::byte* rhs = nullptr;
  const std::byte* lhs_packed = nullptr;
  const std::byte* rhs_packed = nullptr;  // null: not kept packed
  std::byte* out = nullptr;
  DType lhs_dtype = DType::kF32, rhs_dtype = DType::kF32, out_dtype = DType::kF32;
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1;
  float* scratch = nullptr;
};

ProductUnit best_product_unit();
// Whatever this CPU's results depend on: "amx, avx512_bf16", "avx2", or a release of BLAS.
std::string product_units();

// Makes BLAS run in the calling thread. Once per process is enough; more do no harm.
void use_single_threaded_blas();

// Bytes of `x` by `k` values of a dtype in the form in which AMX reads them.
int64_t packed_bytes(DType dtype, int64_t x, int64_t k);
// Where packed values begin from `row` on, a multiple of 32.
const std::byte* packed_row(const std::byte* packed, DType dtype, int64_t row, int64_t k);
// Rows [first, last) of a step's operand at `from`, into all of `to`.
void run_pack(const PackStep& step, DType dtype, const std::byte* from, int64_t first, int64_t last,
              std::byte* to);

// How vector products of activations of this dtype read bf16 weights.
WeightForm panel_form(DType lhs);

// A weight at `from` in its form, of bf16, in pieces that threads may share: x in [first, last),
// first a multiple of kPieceX. False where the values are more than bf16.
inline constexpr int64_t kPieceX = 64;
int64_t packed_bytes(const PackedWeight& weight);
bool pack_weight(const PackedWeight& weight, const std::byte* from, int64_t first, int64_t last,
                 std::byte* to);
// Where the packed weight begins from x on, a multiple of 32.
const std::byte* packed_from(const PackedWeight& weight, const std::byte* packed, int64_t x);

// Scratch of a call of at most rows × cols; `wide_out` when the result is not f32.
size_t gemm_scratch_bytes(const GemmStep& step, int64_t rows, int64_t cols, bool wide_out);
void run_gemm(const GemmStep& step, const GemmCall& call);

}  // namespace npu::cpu
