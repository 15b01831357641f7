// What the host prepares of a micro-batch: embedding rows, RoPE tables, the block-diagonal mask.
#pragma once

#include <span>

#include "model/batch.h"
#include "model/model.h"
#include "tensor/tensor.h"

namespace npu {

// Rows of the embedding [V,H] (any float dtype) for input_ids, rounded to `compute` → x [M,H] in
// x's dtype.
void embedding_rows(const Tensor& embedding_VH, const Batch& batch, DType compute, Tensor& x_MH);

// cos and sin of every position below a limit, in one dtype: a micro-batch copies its rows.
class RopeRows {
 public:
  RopeRows(const ModelConfig& config, int64_t positions, DType dtype);
  // cos, sin [B,1,S,D] for the batch's positions.
  void fill_cos(const Batch& batch, Tensor& cos) const { fill(cos_, batch, cos); }
  void fill_sin(const Batch& batch, Tensor& sin) const { fill(sin_, batch, sin); }

 private:
  static void fill(const Tensor& table, const Batch& batch, Tensor& rows);
  Tensor cos_, sin_;  // [positions, D]
};

// mask [B,1,S,S]: 0 where row i may look at column j (same document, j ≤ i), mask_value elsewhere.
// A padding row looks at itself alone, so that its softmax stays finite.
void attention_mask(const Batch& batch, Tensor& mask);

// "rows" of final_norm for up to R targets: their rows' numbers [R], or the product that picks them
// [R,M]. What is left over is row 0, or no row; nothing reads its results.
void loss_row_input(std::span<const RowTarget> targets, Tensor& rows);

}  // namespace npu
