// The trained tensors of a LoRA run: their names, their initial values, and where they sit.
#include "train/lora_state.h"

#include <cmath>

#include "base/random.h"

namespace npu {

std::string layer_name(int64_t layer, std::string_view input) {
  return "model.layers." + std::to_string(layer) + "." + std::string(input);
}

std::vector<Parameter> init_lora(const ModelConfig& config, const LoraSpec& lora, uint64_t seed,
                                 double b_std) {
  std::vector<Parameter> parameters;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (const Linear& linear : linears()) {
      if (!lora.has(linear.name)) continue;
      const int64_t in = linear.in(config), out = linear.out(config);
      const std::string module = layer_name(layer, linear.module);
      Tensor a(DType::kF32, {lora.rank, in}), b(DType::kF32, {out, lora.rank});
      const RandomStream random_a(seed, module + ".lora_A"), random_b(seed, module + ".lora_B");
      const double bound = 1.0 / std::sqrt(static_cast<double>(in));
      uint64_t i = 0;
      for (float& x : a.mutable_values<float>()) {
        x = static_cast<float>((2.0 * random_a.uniform(i++) - 1.0) * bound);
      }
      i = 0;
      if (b_std > 0) {
        for (float& x : b.mutable_values<float>()) {
          x = static_cast<float>(b_std * random_b.normal(i++));
        }
      }
      parameters.push_back(make_parameter(module + ".lora_A", std::move(a)));
      parameters.push_back(make_parameter(module + ".lora_B", std::move(b)));
    }
  }
  return parameters;
}

std::vector<Parameter> lora_from_tensors(const ModelConfig& config, const LoraSpec& lora,
                                         const std::map<std::string, Tensor>& tensors) {
  std::vector<Parameter> parameters;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (const std::string& input : trained_inputs(lora)) {
      const std::string name = layer_name(layer, input);
      const auto found = tensors.find(name);
      if (found == tensors.end()) {
        fail_input(name, "the adapter lacks this tensor", "",
                   "each targeted linear needs lora_A and lora_B in every layer");
      }
      parameters.push_back(make_parameter(name, found->second.clone()));
    }
  }
  return parameters;
}

}  // namespace npu
