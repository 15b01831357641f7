// PEFT adapters: adapter_config.json and adapter_model.safetensors, written so that peft,
// transformers and vLLM load them unchanged, and read with every name and shape checked.
#pragma once

#include <map>
#include <string>

#include "base/file.h"
#include "model/model.h"
#include "tensor/tensor.h"

namespace npu {

// Tensors by layer-local input name per layer: "model.layers.0.self_attn.q_proj.lora_A" → [r,in]
// f32.
using AdapterTensors = std::map<std::string, Tensor>;

// "model.layers.0.self_attn.q_proj.lora_A" →
// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
std::string peft_name(std::string_view name);

struct Adapter {
  LoraSpec lora;
  std::string base_model_name;
  AdapterTensors tensors;  // f32
};

// Writes both files to a staged directory, re-reads and checks them against `config`, then renames.
// Non-finite values are refused.
void write_peft_adapter(const fs::path& directory, const Adapter& adapter,
                        const ModelConfig& config);

// Refuses what it can't honour (DoRA, bias, modules_to_save, patterns, rank or shape or name that
// does not fit `config`), naming file, key and value.
Adapter read_peft_adapter(const fs::path& directory, const ModelConfig& config);

}  // namespace npu
