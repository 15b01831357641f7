// What the host prepares of a micro-batch: embedding rows, RoPE tables, the block-diagonal mask.
#pragma once

#include "model/batch.h"
#include "model/model.h"
#include "tensor/tensor.h"

namespace npu {

// Rows of the embedding [V,H] (any float dtype) for input_ids, rounded to `compute` → x [M,H] in
// x's dtype.
void embedding_rows(const Tensor& embedding_VH, const Batch& batch, DType compute, Tensor& x_MH);

// cos, sin [B,1,S,D] for the batch's positions.
void rope_inputs(const ModelConfig& config, const Batch& batch, Tensor& cos, Tensor& sin);

// mask [B,1,S,S]: 0 where row i may look at column j (same document, j ≤ i), mask_value elsewhere.
// A padding row looks at itself alone, so that its softmax stays finite.
void attention_mask(const Batch& batch, Tensor& mask);

}  // namespace npu
