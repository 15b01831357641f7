// One product of a plan, by the unit that suits it; 16-bit operands where BLAS has only f32, and
// results that are rounded to 16 bits.
#include "backend/cpu_matmul.h"

#include <cblas.h>

#include <algorithm>

#include "backend/cpu_amx.h"
#include "backend/cpu_vector.h"

namespace npu::cpu {
namespace {

// A matrix as BLAS takes it: rows × cols at `data`, or its transpose.
struct Matrix {
  const float* data;
  int64_t ld;
};

// `rows` × `cols` stored elements of a 16-bit dtype as a dense f32 panel.
Matrix widened(const std::byte* from, DType dtype, int64_t ld, int64_t rows, int64_t cols,
               float* panel) {
  static const LoopFn load_bf16 = find_loop("load.bf16"), load_f16 = find_loop("load.f16");
  LoopCall call{panel, {from, nullptr, nullptr}, cols, {ld, 0, 0}, rows, cols, 1};
  (dtype == DType::kBF16 ? load_bf16 : load_f16)(call);
  return {panel, cols};
}

void store_rounded(float* from, int64_t m, int64_t n, std::byte* out, DType dtype, int64_t ld) {
  static const LoopFn round_bf16 = find_loop("round.bf16"), round_f16 = find_loop("round.f16");
  static const LoopFn store_bf16 = find_loop("store.bf16"), store_f16 = find_loop("store.f16");
  const bool bf16 = dtype == DType::kBF16;
  (bf16 ? round_bf16 : round_f16)({from, {from, nullptr, nullptr}, n, {n, 0, 0}, m, n, 1});
  (bf16 ? store_bf16 : store_f16)({out, {from, nullptr, nullptr}, ld, {n, 0, 0}, m, n, 1});
}

OperandDType operand_dtype(DType dtype) {
  return dtype == DType::kF32    ? OperandDType::kF32
         : dtype == DType::kBF16 ? OperandDType::kBF16
                                 : OperandDType::kF16;
}

bool suits_amx(const GemmStep& step, const GemmCall& call) {
  return step.packed || (step.amx && fills_amx(call.m, call.n, call.k));
}

Product product_of(const GemmStep& step, const GemmCall& call) {
  Product product;
  product.lhs = {call.lhs, step.lhs_ld, operand_dtype(call.lhs_dtype), step.lhs_transposed};
  product.rhs = {call.rhs, step.rhs_ld, operand_dtype(call.rhs_dtype), !step.rhs_transposed};
  product.m = call.m;
  product.n = call.n;
  product.k = call.k;
  product.alpha = call.alpha;
  product.beta = step.accumulate ? 1.0f : 0.0f;
  product.out = call.out;
  product.out_ld = step.out_ld;
  product.out_dtype = operand_dtype(call.out_dtype);
  return product;
}

void run_amx(const GemmStep& step, const GemmCall& call, const Product& plain) {
  AmxProduct product{plain};
  if (step.packed) {
    product.lhs.data = call.lhs_packed;
    product.lhs.packed_parts = amx_parts(operand_dtype(call.lhs_dtype));
  }
  if (call.rhs_packed != nullptr) {
    product.rhs.data = call.rhs_packed;
    product.rhs.packed_parts = 1;
  }
  if (product.lhs.packed_parts + product.rhs.packed_parts > 0) {
    product.left = step.turned ? AmxLeft::kRhs : AmxLeft::kLhs;
  }
  amx_multiply(product, reinterpret_cast<std::byte*>(call.scratch));
}

// 16-bit operands are widened panel by panel.
void run_blas(const GemmStep& step, const GemmCall& call, float* out, int64_t out_ld) {
  const int64_t lhs_bytes = static_cast<int64_t>(dtype_bytes(call.lhs_dtype));
  const int64_t rhs_bytes = static_cast<int64_t>(dtype_bytes(call.rhs_dtype));
  const int64_t block = step.block_k > 0 ? step.block_k : call.k;
  float* const lhs_panel = call.scratch;
  float* const rhs_panel = lhs_panel + call.m * step.block_k;
  float beta = step.accumulate ? 1.0f : 0.0f;
  for (int64_t k0 = 0; k0 < call.k; k0 += block) {
    const int64_t k = std::min(block, call.k - k0);
    const std::byte* from = call.lhs + k0 * (step.lhs_transposed ? step.lhs_ld : 1) * lhs_bytes;
    Matrix lhs{reinterpret_cast<const float*>(from), step.lhs_ld};
    if (call.lhs_dtype != DType::kF32) {
      lhs = step.lhs_transposed ? widened(from, call.lhs_dtype, step.lhs_ld, k, call.m, lhs_panel)
                                : widened(from, call.lhs_dtype, step.lhs_ld, call.m, k, lhs_panel);
    }
    from = call.rhs + k0 * (step.rhs_transposed ? 1 : step.rhs_ld) * rhs_bytes;
    Matrix rhs{reinterpret_cast<const float*>(from), step.rhs_ld};
    if (call.rhs_dtype != DType::kF32) {
      rhs = step.rhs_transposed ? widened(from, call.rhs_dtype, step.rhs_ld, call.n, k, rhs_panel)
                                : widened(from, call.rhs_dtype, step.rhs_ld, k, call.n, rhs_panel);
    }
    const auto flag = [](bool transposed) { return transposed ? CblasTrans : CblasNoTrans; };
    cblas_sgemm(CblasRowMajor, flag(step.lhs_transposed), flag(step.rhs_transposed),
                static_cast<blasint>(call.m), static_cast<blasint>(call.n), static_cast<blasint>(k),
                call.alpha, lhs.data, static_cast<blasint>(lhs.ld), rhs.data,
                static_cast<blasint>(rhs.ld), beta, out, static_cast<blasint>(out_ld));
    beta = 1.0f;
  }
}

bool in_panels(WeightForm form) {
  return form == WeightForm::kPanels || form == WeightForm::kPairPanels;
}

// bf16 values by panels of x, in rows of k or of pairs of k; zeros beyond the weight.
void pack_panels(const PackedWeight& weight, const uint16_t* from, int64_t first, int64_t last,
                 uint16_t* to) {
  const int64_t cols = vector_unit()->panel_cols;
  const int64_t depth = weight.form == WeightForm::kPairPanels ? 2 : 1;
  for (int64_t x0 = first; x0 < last; x0 += cols) {
    uint16_t* const panel = to + x0 / cols * panel_bytes(cols, weight.k) / 2;
    const int64_t count = std::min(cols, last - x0);
    for (int64_t k = 0; k < (weight.k + 1) / 2 * 2; ++k) {
      uint16_t* const row = panel + k / depth * cols * depth + k % depth;
      for (int64_t x = 0; x < cols; ++x) {
        const int64_t at = weight.k_rows ? k * weight.ld + x0 + x : (x0 + x) * weight.ld + k;
        row[x * depth] = x < count && k < weight.k ? from[at] : 0;
      }
    }
  }
}

}  // namespace

ProductUnit best_product_unit() {
  if (amx_available()) return ProductUnit::kAmx;
  return vector_unit() != nullptr ? ProductUnit::kVector : ProductUnit::kBlas;
}

void use_single_threaded_blas() { openblas_set_num_threads(1); }

std::string product_units() {
  switch (best_product_unit()) {
    case ProductUnit::kAmx:
      return std::string("amx, ") + vector_unit()->isa;
    case ProductUnit::kVector:
      return vector_unit()->isa;
    case ProductUnit::kBlas:
      break;
  }
  return std::string(openblas_get_config()) + " " + openblas_get_corename();
}

int64_t packed_bytes(DType dtype, int64_t x, int64_t k) {
  return amx_packed_bytes(x, k, amx_parts(operand_dtype(dtype)));
}

const std::byte* packed_row(const std::byte* packed, DType dtype, int64_t row, int64_t k) {
  return packed + row / kAmxBlock * amx_packed_block_bytes(k, amx_parts(operand_dtype(dtype)));
}

void run_pack(const PackStep& step, DType dtype, const std::byte* from, int64_t first, int64_t last,
              std::byte* to) {
  const OperandDType type = operand_dtype(dtype);
  amx_pack({from, step.ld, type}, step.left, amx_parts(type), first, last, step.from.cols, to);
}

WeightForm panel_form(DType lhs) {
  const VectorUnit* const unit = vector_unit();
  const bool pairs = unit != nullptr && unit->bf16_pairs && lhs == DType::kBF16;
  return pairs ? WeightForm::kPairPanels : WeightForm::kPanels;
}

int64_t packed_bytes(const PackedWeight& weight) {
  if (!in_panels(weight.form)) return amx_packed_bytes(weight.x, weight.k, 1);
  const int64_t cols = vector_unit()->panel_cols;
  return (weight.x + cols - 1) / cols * panel_bytes(cols, weight.k);
}

const std::byte* packed_from(const PackedWeight& weight, const std::byte* packed, int64_t x) {
  if (!in_panels(weight.form)) return packed_row(packed, DType::kBF16, x, weight.k);
  const int64_t cols = vector_unit()->panel_cols;
  return packed + x / cols * panel_bytes(cols, weight.k);
}

bool pack_weight(const PackedWeight& weight, const std::byte* from, int64_t first, int64_t last,
                 std::byte* to) {
  if (in_panels(weight.form)) {
    pack_panels(weight, reinterpret_cast<const uint16_t*>(from), first, last,
                reinterpret_cast<uint16_t*>(to));
    return true;
  }
  const ProductOperand operand{from, weight.ld, operand_dtype(weight.dtype), weight.k_rows};
  return amx_pack(operand, weight.form == WeightForm::kLeftTiles, 1, first, last, weight.k, to);
}

size_t gemm_scratch_bytes(const GemmStep& step, int64_t rows, int64_t cols, bool wide_out) {
  const size_t panels = static_cast<size_t>((rows + cols) * step.block_k) * sizeof(float);
  const size_t unit = step.amx || step.vector ? kProductScratchBytes : 0;
  const size_t out = wide_out ? static_cast<size_t>(rows * cols) * sizeof(float) : 0;
  return std::max(panels, unit) + out;
}

void run_gemm(const GemmStep& step, const GemmCall& call) {
  const bool amx = suits_amx(step, call), vector = step.vector && !amx;
  Product product = product_of(step, call);
  const bool rounded_behind =
      call.out_dtype != DType::kF32 && !(vector && vector_unit()->writes_narrow(product));
  if (rounded_behind) {  // from sums in f32, behind what the product needs
    const size_t offset = gemm_scratch_bytes(step, call.m, call.n, false);
    product.out = call.scratch + offset / sizeof(float);
    product.out_ld = call.n;
    product.out_dtype = OperandDType::kF32;
  }
  if (amx) {
    run_amx(step, call, product);
  } else if (vector) {
    if (call.rhs_packed != nullptr && !step.amx) {  // kept as tiles for AMX's share of the step
      product.rhs.data = call.rhs_packed;
      product.rhs.packed_parts = 1;
    }
    vector_unit()->multiply(product, reinterpret_cast<std::byte*>(call.scratch));
  } else {
    run_blas(step, call, static_cast<float*>(product.out), product.out_ld);
  }
  if (rounded_behind) {
    store_rounded(static_cast<float*>(product.out), call.m, call.n, call.out, call.out_dtype,
                  step.out_ld);
  }
}

}  // namespace npu::cpu
