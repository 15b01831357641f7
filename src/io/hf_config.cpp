// config.json → ModelConfig. What the graphs don't implement is refused here by key and value,
// since a wrong guess would train to a plausible but worse loss.
#include <limits>

#include "io/config_reader.h"
#include "io/hf_model.h"

namespace npu {
namespace {

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxLayers = 10'000;  // keeps a hostile config from making endless name lists

// Defaults of transformers' LlamaConfig, for keys that a file may leave out.
constexpr double kDefaultEps = 1e-6;
constexpr double kDefaultTheta = 10000;
constexpr int64_t kDefaultPositions = 2048;

void check_family(const ConfigReader& config) {
  const std::string model_type = config.text("model_type");
  if (model_type != "llama")
    config.refuse("model_type", "this model type is not implemented", "implemented: llama");
  if (const Json* architectures = config.find("architectures")) {
    if (*architectures != Json::array({"LlamaForCausalLM"}))
      config.refuse("architectures", "this architecture is not implemented",
                    "implemented: [\"LlamaForCausalLM\"]");
  }
}

// Keys that are accepted only where they change nothing.
void check_unimplemented(const ConfigReader& config) {
  if (config.text("hidden_act", "silu") != "silu")
    config.refuse("hidden_act", "this activation is not implemented", "implemented: silu");
  if (config.find("quantization_config") != nullptr)
    config.refuse("quantization_config", "quantized checkpoints are not implemented",
                  "use the unquantized model, or its GGUF");
  if (config.flag("rope_interleaved", false))
    config.refuse("rope_interleaved", "interleaved rotary positions are not implemented");
  if (config.number("attention_dropout", 0) != 0)
    config.refuse("attention_dropout", "dropout in attention is not implemented", "set it to 0");
  if (config.number("partial_rotary_factor", 1) != 1)
    config.refuse("partial_rotary_factor", "partial rotary positions are not implemented");
}

RopeScaling read_llama3_scaling(const ConfigReader& rope) {
  RopeScaling scaling;
  scaling.factor = rope.number("factor");
  if (!(scaling.factor >= 1)) rope.refuse("factor", "must be at least 1");
  scaling.low_freq_factor = rope.positive("low_freq_factor");
  scaling.high_freq_factor = rope.number("high_freq_factor");
  if (!(scaling.high_freq_factor > scaling.low_freq_factor))
    rope.refuse("high_freq_factor", "must be greater than low_freq_factor");
  scaling.original_max_position_embeddings =
      rope.whole("original_max_position_embeddings", 1, kMaxSize);
  return scaling;
}

// transformers 5 writes rope_parameters {rope_theta, rope_type, …}; before, rope_theta stood at the
// top and rope_scaling held the rest, its kind under "rope_type" or, earlier still, "type".
void read_rope(const ConfigReader& config, ModelConfig& model) {
  model.rope_theta = config.positive("rope_theta", kDefaultTheta);
  const char* key = config.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const Json* object = config.find(key);
  if (object == nullptr) return;
  const ConfigReader rope(*object, config.where() + ": " + key);
  model.rope_theta = rope.positive("rope_theta", model.rope_theta);
  if (rope.number("partial_rotary_factor", 1) != 1)
    rope.refuse("partial_rotary_factor", "partial rotary positions are not implemented");
  const char* type_key = rope.find("rope_type") != nullptr ? "rope_type" : "type";
  const std::string type = rope.text(type_key);
  if (type == "llama3")
    model.rope_scaling = read_llama3_scaling(rope);
  else if (type != "default")
    rope.refuse(type_key, "this rope type is not implemented", "implemented: default, llama3");
}

void read_sizes(const ConfigReader& config, ModelConfig& model) {
  model.hidden_size = config.whole("hidden_size", 1, kMaxSize);
  model.intermediate_size = config.whole("intermediate_size", 1, kMaxSize);
  model.num_hidden_layers = config.whole("num_hidden_layers", 1, kMaxLayers);
  model.vocab_size = config.whole("vocab_size", 1, kMaxSize);
  model.max_position_embeddings =
      config.whole("max_position_embeddings", 1, kMaxSize, kDefaultPositions);

  const int64_t heads = config.whole("num_attention_heads", 1, kMaxSize);
  model.num_attention_heads = heads;
  model.num_key_value_heads = config.whole("num_key_value_heads", 1, kMaxSize, heads);
  if (heads % model.num_key_value_heads != 0)
    config.refuse("num_key_value_heads",
                  "must divide num_attention_heads (" + std::to_string(heads) + ")");
  if (config.find("head_dim") == nullptr && model.hidden_size % heads != 0)
    config.refuse("num_attention_heads", "must divide hidden_size (" +
                                             std::to_string(model.hidden_size) +
                                             ") where head_dim is not given");
  model.head_dim = config.whole("head_dim", 1, kMaxSize, model.hidden_size / heads);
  if (model.head_dim % 2 != 0)
    config.fail_key("head_dim", "must be even: rotary positions pair its halves",
                    std::to_string(model.head_dim));
  if (model.head_dim > kMaxSize / heads)
    config.fail_key("head_dim", "num_attention_heads × head_dim must be below 2^31",
                    std::to_string(heads) + " × " + std::to_string(model.head_dim));
}

// transformers 5 writes "dtype", 4 wrote "torch_dtype". Anything but the 16-bit floats counts as
// f32.
DType read_storage_dtype(const ConfigReader& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (config.find(key) == nullptr) continue;
    const std::string name = config.text(key);
    return name == "bfloat16" ? DType::kBF16 : name == "float16" ? DType::kF16 : DType::kF32;
  }
  return DType::kF32;
}

}  // namespace

ModelConfig parse_model_config(const Json& json, std::string_view where) {
  const ConfigReader config(json, std::string(where));
  check_family(config);
  check_unimplemented(config);
  ModelConfig model;
  model.model_type = config.text("model_type");
  read_sizes(config, model);
  model.rms_norm_eps = config.positive("rms_norm_eps", kDefaultEps);
  read_rope(config, model);
  model.initializer_range = config.positive("initializer_range", model.initializer_range);
  model.tie_word_embeddings = config.flag("tie_word_embeddings", false);
  model.attention_bias = config.flag("attention_bias", false);
  model.mlp_bias = config.flag("mlp_bias", false);
  model.storage_dtype = read_storage_dtype(config);
  return model;
}

}  // namespace npu
