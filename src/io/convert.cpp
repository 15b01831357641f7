// GGUF → a Hugging Face directory that transformers, peft and vLLM load.
#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "io/gguf_model.h"
#include "io/hf_model.h"
#include "io/hf_weights.h"
#include "io/quote.h"
#include "io/safetensors_writer.h"

namespace npu {
namespace {

// How config.json names the dtype of the weights.
std::string torch_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    default:
      fail(ErrorKind::kUsage, "--dtype", "weights are f32, bf16 or f16",
           std::string(dtype_name(dtype)));
  }
}

void write_json(const fs::path& path, const Json& json) { publish_text(path, json.dump(2) + "\n"); }

// generation_config.json: the ids that end and begin text, as transformers derives them from the
// config.
Json generation_config(const Json& config) {
  Json result = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (config.contains(key)) result[key] = config[key];
  return result;
}

// The special tokens once more, where older readers look for them.
Json special_tokens_map(const TokenizerFiles& files) {
  const Json config = parse_json(files.tokenizer_config_json, files.where).take();
  Json result = Json::object();
  for (const char* key : {"bos_token", "eos_token", "pad_token", "unk_token"})
    if (config.contains(key)) result[key] = config[key];
  return result;
}

// The directory is replaced as a whole, so it may hold nothing that a conversion does not write.
void check_output(const fs::path& directory) {
  static constexpr std::string_view kOurs[] = {
      "config.json",    "generation_config.json", "model.safetensors.index.json",
      "tokenizer.json", "tokenizer_config.json",  "special_tokens_map.json"};
  if (!fs::is_directory(directory)) return;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const bool weights = name.starts_with("model") && name.ends_with(".safetensors");
    if (weights || std::ranges::find(kOurs, name) != std::end(kOurs)) continue;
    fail(ErrorKind::kUsage, directory.string(),
         "the output directory holds files of something else", in_quotes(name),
         "name a new or empty directory");
  }
}

}  // namespace

void convert_gguf(const fs::path& gguf, const fs::path& out_directory, DType dtype) {
  check_output(out_directory);
  const GgufModel model = open_gguf(gguf);
  Json config_json = gguf_config(model);
  config_json["torch_dtype"] = torch_name(dtype);
  const ModelConfig config = parse_model_config(config_json, gguf.string());
  const TokenizerFiles tokenizer = gguf_tokenizer(model.gguf);
  const ListedWeights weights = gguf_weights(model, config);
  check_weights(weights.listing, config, gguf.string());

  std::vector<TensorSpec> specs;
  for (auto& [name, shape] : expected_weights(config)) specs.push_back({name, dtype, shape});
  const auto source = [&](const TensorSpec& spec) {
    const Tensor stored = weights.store->get(spec.name);
    Tensor converted = stored.dtype() == spec.dtype ? stored : stored.to(spec.dtype);
    if (stored.dtype() != spec.dtype) weights.store->release(stored);
    return converted;
  };

  StagedDirectory staged(out_directory);
  write_model_files(staged.path(), specs, source, kDefaultShardBytes);
  write_json(staged.path() / "config.json", config_json);
  write_json(staged.path() / "generation_config.json", generation_config(config_json));
  publish_text(staged.path() / "tokenizer.json", tokenizer.tokenizer_json + "\n");
  publish_text(staged.path() / "tokenizer_config.json", tokenizer.tokenizer_config_json);
  write_json(staged.path() / "special_tokens_map.json", special_tokens_map(tokenizer));
  staged.commit();
  log_info("convert",
           std::to_string(specs.size()) + " tensors written to " + out_directory.string());
}

}  // namespace npu
