// A model on disk as this program sees it: configuration, weights, tokenizer and chat template,
// from a Hugging Face directory, a hub-cache id or a .gguf file.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/json.h"
#include "model/model.h"
#include "model/weights.h"

namespace npu {

// config.json → ModelConfig. Anything not implemented (model_type, rope type, activation,
// quantization_config) is refused with its key and value. Reads both spellings of RoPE.
ModelConfig parse_model_config(const Json& config, std::string_view where);

struct TokenizerFiles {
  std::string tokenizer_json;         // text of tokenizer.json (made from GGUF metadata if need be)
  std::string tokenizer_config_json;  // "" when absent
  std::string chat_template;          // Jinja text, "" when the model has none
  std::string bos_token, eos_token, pad_token;  // "" when absent
  int32_t eos_token_id = -1;
  std::string where;  // for messages
};

struct HfModel {
  fs::path path;
  std::string base_name;  // for base_model_name_or_path: the id or path as the user gave it
  ModelConfig config;
  TokenizerFiles tokenizer;
  std::unique_ptr<WeightStore> weights;  // null when loaded with_weights = false
};

// `where` is a directory, a .gguf file or an id in one of the local hub caches `hub_roots` (never
// downloaded). Weights are checked against the config: each expected name is there with its shape,
// and no other.
HfModel load_model(const std::string& where, bool with_weights = true,
                   const std::vector<fs::path>& hub_roots = {});

// What the weights on disk are stored as, of which config.json only says what it should be: F32
// where they differ, since rounding them unasked would be a silent loss. The config's word where
// there are no weight files.
DType stored_dtype(const HfModel& model);

// Weights drawn as the family's initialiser does (normal, initializer_range; norms 1), for checks
// of a geometry from its config.json alone.
std::unique_ptr<WeightStore> random_weights(const ModelConfig& config, uint64_t seed);

// GGUF → Hugging Face directory (config, generation config, weights as `dtype`, tokenizer files).
// An existing directory is replaced as a whole, so one that holds other files is refused.
void convert_gguf(const fs::path& gguf, const fs::path& out_directory, DType dtype);

}  // namespace npu
