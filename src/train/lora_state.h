// The trained tensors of a LoRA run: their names, their initial values, and where they sit.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/model.h"
#include "train/optimizer.h"

namespace npu {

// "model.layers.N." + input name of layer_forward.
std::string layer_name(int64_t layer, std::string_view input);

// Standard deviation of B where runs are compared: B = 0 would hide the gradient of A.
inline constexpr double kCheckBStd = 0.01;

// A: Kaiming-uniform as PEFT draws it, U(−1/√in, 1/√in); B: zero, or N(0, b_std) for checks, where
// a zero B would hide half of the gradients. Drawn from (seed, name), so independent of targets.
std::vector<Parameter> init_lora(const ModelConfig& config, const LoraSpec& lora, uint64_t seed,
                                 double b_std = 0);

// From an adapter's tensors (names as above, f32); each expected name must be there.
std::vector<Parameter> lora_from_tensors(const ModelConfig& config, const LoraSpec& lora,
                                         const std::map<std::string, Tensor>& tensors);

}  // namespace npu
