// A linear of the decoder layer with its optional bias and LoRA adapter.
#pragma once

#include "model/model.h"
#include "ops/ops.h"

namespace npu {

// x [M,in] → [M,out] in the compute dtype: x·Wᵀ (+ bias) (+ scale · (x·Aᵀ)·Bᵀ). Declares the inputs
// it uses in `builder`. The adapter computes in f32 on the unrounded product path, as PEFT does
// with f32 adapters on a bf16 base: the result is rounded once, after the sum.
Value lora_linear(Builder& builder, const ModelConfig& config, const LayerOptions& options,
                  const Linear& linear, Value x_MI);

}  // namespace npu
