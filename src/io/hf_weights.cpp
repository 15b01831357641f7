// Safetensors weights of a Hugging Face directory, one file or shards, checked against the config.
#include "io/hf_weights.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/nearest.h"
#include "io/config_reader.h"
#include "io/quote.h"
#include "io/safetensors.h"

namespace npu {
namespace {

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

class SafetensorsWeights : public WeightStore {
 public:
  void add(SafetensorsFile file, const std::vector<std::string>& names) {
    for (const std::string& name : names) file_of_[name] = files_.size();
    files_.push_back(std::move(file));
  }

  bool has(std::string_view name) const override { return file_of_.contains(name); }

  Tensor get(std::string_view name) const override {
    const auto found = file_of_.find(name);
    if (found == file_of_.end())
      fail_input(std::string(name), "the model has no tensor of this name");
    return files_[found->second].get(name);
  }

  void release(const Tensor& view) const override {
    const std::span<const std::byte> part(view.data(), view.bytes());
    for (const SafetensorsFile& file : files_) {
      const std::span<const std::byte> bytes = file.file().bytes();
      // A tensor that was copied lies in no file and has nothing to release.
      const bool inside =
          std::less_equal<>()(bytes.data(), part.data()) &&
          std::less_equal<>()(part.data() + part.size(), bytes.data() + bytes.size());
      if (inside) file.file().release(part);
    }
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> result;
    for (const auto& [name, file] : file_of_) result.push_back(name);
    return result;
  }

  WeightListing listing() const {
    WeightListing result;
    for (const auto& [name, index] : file_of_) {
      const SafetensorsEntry& entry = files_[index].entry(name);
      const std::optional<DType> dtype = dtype_from_safetensors(entry.dtype);
      result[name] = {files_[index].file().path().string(), std::string(entry.dtype),
                      dtype.has_value() && is_float(*dtype), entry.shape};
    }
    return result;
  }

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t, std::less<>> file_of_;
};

bool is_there(const fs::path& path) {
  std::error_code unreadable;
  return fs::exists(path, unreadable);
}

bool plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos &&
         name.ends_with(".safetensors");
}

void open_shards(const fs::path& directory, SafetensorsWeights& weights) {
  const fs::path index = directory / kIndexFile;
  std::map<std::string, std::vector<std::string>> names_of;
  for (const auto& [name, file] : parse_weight_index(read_text(index), index.string()))
    names_of[file].push_back(name);
  for (const auto& [file_name, names] : names_of) {
    SafetensorsFile file = SafetensorsFile::open(directory / file_name);
    for (const std::string& name : names)
      if (!file.has(name))
        fail_input(index.string() + ": weight_map: " + in_quotes(name),
                   "the tensor is not in the file that the index names", in_quotes(file_name));
    weights.add(std::move(file), names);
  }
}

// Tensors that checkpoints carry but no reader uses (an untied lm_head is among the expected ones).
bool ignorable(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq") || name == "lm_head.weight";
}

}  // namespace

std::vector<std::pair<std::string, Shape>> expected_weights(const ModelConfig& config) {
  std::vector<std::pair<std::string, Shape>> result;
  const int64_t hidden = config.hidden_size;
  result.push_back({"model.embed_tokens.weight", {config.vocab_size, hidden}});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    result.push_back({prefix + "input_layernorm.weight", {hidden}});
    result.push_back({prefix + "post_attention_layernorm.weight", {hidden}});
    for (const Linear& linear : linears()) {
      const std::string module = prefix + std::string(linear.module);
      const int64_t out = linear.out(config);
      result.push_back({module + ".weight", {out, linear.in(config)}});
      const bool attention = linear.module.starts_with("self_attn.");
      if (attention ? config.attention_bias : config.mlp_bias)
        result.push_back({module + ".bias", {out}});
    }
  }
  result.push_back({"model.norm.weight", {hidden}});
  if (!config.tie_word_embeddings)
    result.push_back({"lm_head.weight", {config.vocab_size, hidden}});
  return result;
}

void check_weights(const WeightListing& stored, const ModelConfig& config,
                   const std::string& where) {
  std::map<std::string, Shape, std::less<>> expected;
  for (auto& [name, shape] : expected_weights(config)) {
    const auto found = stored.find(name);
    if (found == stored.end())
      fail_input(where + ": " + name, "the weight is missing",
                 std::to_string(stored.size()) + " other tensors",
                 "config.json and the weight files must be of the same model");
    const StoredTensor& tensor = found->second;
    if (tensor.shape != shape)
      fail_input(tensor.file + ": " + name, "the shape must be " + shape_text(shape),
                 shape_text(tensor.shape),
                 "config.json and the weight files must be of the same model");
    if (!tensor.readable)
      fail_input(tensor.file + ": " + name, "weights must be F32, BF16 or F16", tensor.dtype,
                 "convert the model to one of these");
    expected.emplace(std::move(name), std::move(shape));
  }
  for (const auto& [name, tensor] : stored) {
    if (expected.contains(name) || ignorable(name)) continue;
    std::vector<std::string> names;
    for (const auto& [known, shape] : expected) names.push_back(known);
    fail_input(
        tensor.file + ": " + in_quotes(name), "this tensor is no part of the configured model",
        shape_text(tensor.shape),
        "the config may lack a key (attention_bias, tie_word_embeddings, num_hidden_layers); "
        "nearest known name: " +
            nearest_name(name, names));
  }
}

std::map<std::string, std::string> parse_weight_index(std::string_view text,
                                                      std::string_view where) {
  const Json json = parse_json(text, where).take();
  const ConfigReader index(json, std::string(where));
  const Json* weight_map = index.find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object() || weight_map->empty())
    index.refuse("weight_map", "must be an object that gives each tensor's file");
  std::map<std::string, std::string> result;
  for (const auto& [name, file] : weight_map->items()) {
    const std::string entry = std::string(where) + ": weight_map: " + in_quotes(name);
    if (!file.is_string()) fail_input(entry, "must be a file name", value_text(file));
    const auto& file_name = file.get_ref<const std::string&>();
    if (!plain_file_name(file_name))
      fail_input(entry, "must be a plain .safetensors file name inside the model's directory",
                 in_quotes(file_name));
    result.emplace(name, file_name);
  }
  return result;
}

bool has_safetensors_weights(const fs::path& directory) {
  return is_there(directory / kSingleFile) || is_there(directory / kIndexFile);
}

ListedWeights open_safetensors_weights(const fs::path& directory) {
  auto weights = std::make_unique<SafetensorsWeights>();
  // The single file first, as transformers does.
  if (is_there(directory / kSingleFile)) {
    SafetensorsFile file = SafetensorsFile::open(directory / kSingleFile);
    const std::vector<std::string> names = file.names();
    weights->add(std::move(file), names);
  } else if (is_there(directory / kIndexFile)) {
    open_shards(directory, *weights);
  } else {
    const bool pickled = is_there(directory / "pytorch_model.bin") ||
                         is_there(directory / "pytorch_model.bin.index.json");
    fail_input(directory.string(), "no model.safetensors and no model.safetensors.index.json",
               pickled ? "pytorch_model.bin" : "",
               pickled ? "save the model as safetensors (save_pretrained does)"
                       : "give a directory that holds the weights, or a .gguf file");
  }
  WeightListing listing = weights->listing();
  return {std::move(weights), std::move(listing)};
}

}  // namespace npu
