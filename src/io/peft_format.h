// What reading and writing PEFT adapters share: file names and the tensors that a LoraSpec implies.
// Private to src/io.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "io/json.h"
#include "io/peft.h"

namespace npu {

inline constexpr std::string_view kAdapterConfigFile = "adapter_config.json";
inline constexpr std::string_view kAdapterWeightsFile = "adapter_model.safetensors";

// Every adapter tensor of the targets in all layers, with its shape: A [r,in], B [out,r].
std::map<std::string, Shape> expected_adapter(const LoraSpec& lora, const ModelConfig& config);

// adapter_config.json → rank, alpha, targets, base model; what is not implemented is refused by
// key.
Adapter parse_adapter_config(const Json& json, std::string_view where);

// UserError naming the tensor if a value is NaN or infinite.
void check_finite(const Tensor& tensor, const std::string& where);

}  // namespace npu
