// A model from wherever it lies: configuration, tokenizer and weights that belong together.
#include "io/hf_model.h"

#include <nlohmann/json.hpp>

#include "io/gguf_model.h"
#include "io/hf_files.h"
#include "io/hf_weights.h"

namespace npu {
namespace {

constexpr JsonLimits kConfigLimits{.max_bytes = size_t{4} << 20, .max_depth = 32};

HfModel load_gguf(const fs::path& path, bool with_weights) {
  const GgufModel file = open_gguf(path);
  HfModel model;
  model.config = parse_model_config(gguf_config(file), path.string());
  model.tokenizer = gguf_tokenizer(file.gguf);
  if (!with_weights) return model;
  ListedWeights weights = gguf_weights(file, model.config);
  check_weights(weights.listing, model.config, path.string());
  model.weights = std::move(weights.store);
  return model;
}

HfModel load_directory(const fs::path& directory, bool with_weights) {
  const fs::path config_path = directory / "config.json";
  const Json config = read_json_file(config_path, kConfigLimits);
  HfModel model;
  model.config = parse_model_config(config, config_path.string());
  model.tokenizer = read_tokenizer_files(directory, config);
  if (!with_weights) return model;
  ListedWeights weights = open_safetensors_weights(directory);
  check_weights(weights.listing, model.config, directory.string());
  model.weights = std::move(weights.store);
  return model;
}

}  // namespace

HfModel load_model(const std::string& where, bool with_weights,
                   const std::vector<fs::path>& hub_roots) {
  const ModelPlace place = find_model(where, hub_roots);
  HfModel model =
      place.gguf ? load_gguf(place.path, with_weights) : load_directory(place.path, with_weights);
  model.path = place.path;
  model.base_name = where;
  return model;
}

DType stored_dtype(const HfModel& model) {
  const DType configured = model.config.storage_dtype;
  if (configured == DType::kF32) return configured;
  std::unique_ptr<WeightStore> opened;
  const WeightStore* weights = model.weights.get();
  if (weights == nullptr) {
    if (!has_safetensors_weights(model.path)) return configured;
    opened = open_safetensors_weights(model.path).store;
    weights = opened.get();
  }
  for (const auto& [name, shape] : expected_weights(model.config)) {
    if (weights->has(name) && weights->get(name).dtype() != configured) return DType::kF32;
  }
  return configured;
}

}  // namespace npu
