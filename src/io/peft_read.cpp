// Reading PEFT adapters. peft and vLLM load many faulty adapters without a word and apply them
// partly or not at all; here every key, name and shape is understood or refused.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/nearest.h"
#include "io/config_reader.h"
#include "io/peft_format.h"
#include "io/quote.h"
#include "io/safetensors.h"

namespace npu {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kSuffix = ".weight";
constexpr int64_t kMaxLoraRank = std::numeric_limits<int32_t>::max();

// Keys that have no effect on a trained LoRA adapter, whatever their value.
const std::set<std::string, std::less<>>& harmless_keys() {
  static const std::set<std::string, std::less<>> kKeys = {
      "auto_mapping",      "inference_mode", "lora_dropout",        "peft_version",  "revision",
      "qalora_group_size", "megatron_core",  "ensure_weight_tying", "runtime_config"};
  return kKeys;
}

// Keys that parse_adapter_config() reads.
const std::set<std::string, std::less<>>& known_keys() {
  static const std::set<std::string, std::less<>> kKeys = {
      "peft_type",      "task_type",  "base_model_name_or_path", "r",   "lora_alpha",
      "target_modules", "use_rslora", "init_lora_weights",       "bias"};
  return kKeys;
}

// null, false, 0, "", [], {}: how these files say that a feature is off.
bool is_off(const Json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();
}

void check_other_keys(const Json& json, const ConfigReader& config) {
  for (const auto& [key, value] : json.items()) {
    if (known_keys().contains(key) || harmless_keys().contains(key) || is_off(value)) continue;
    config.refuse(key, "this feature of PEFT is not implemented",
                  "only plain LoRA adapters are read");
  }
}

// Some initialisers change the base weights, so the adapter alone does not say what the model is.
void check_initialiser(const ConfigReader& config) {
  const Json* value = config.find("init_lora_weights");
  if (value == nullptr || value->is_boolean()) return;
  if (*value == "gaussian" || *value == "orthogonal" || *value == "eva") return;
  config.refuse("init_lora_weights", "this initialiser may change the base model's weights",
                "save the adapter with init_lora_weights true (peft: "
                "path_initial_model_for_weight_conversion)");
}

// "model.layers.7.mlp.up_proj…" → {7, "mlp.up_proj…"}; layer -1 for another form.
struct InLayer {
  int64_t layer = -1;
  std::string_view rest;
};
InLayer split_layer(std::string_view name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return {};
  int64_t layer = -1;
  const char* end = name.data() + name.size();
  const auto [at, error] = std::from_chars(name.data() + kLayers.size(), end, layer);
  if (error != std::errc() || at == end || *at != '.') return {};
  return {layer, name.substr(static_cast<size_t>(at - name.data()) + 1)};
}

// A target's linear. peft spells "all-linear" out as the full path of each module; a layer left out
// among them shows in the tensors, where every layer is expected.
std::string target_named(const ConfigReader& config, const std::string& name) {
  const InLayer full = split_layer(name);
  const std::string_view module = full.layer >= 0 ? full.rest : std::string_view(name);
  std::vector<std::string> names;
  for (const Linear& linear : linears()) {
    if (module == linear.name || module == linear.module) return std::string(linear.name);
    names.emplace_back(linear.name);
  }
  config.fail_key("target_modules", "this module can't carry an adapter here", in_quotes(name),
                  "nearest: " + nearest_name(module, names));
}

std::vector<std::string> read_targets(const ConfigReader& config) {
  const Json* value = config.find("target_modules");
  if (value == nullptr) config.fail_key("target_modules", "the key is missing");
  std::set<std::string, std::less<>> chosen;
  if (*value == "all-linear") {
    for (const Linear& linear : linears()) chosen.emplace(linear.name);
  } else if (value->is_array()) {
    for (const Json& entry : *value) {
      if (!entry.is_string()) config.refuse("target_modules", "must be a list of module names");
      chosen.insert(target_named(config, entry.get<std::string>()));
    }
  } else {
    config.refuse("target_modules", "must be a list of module names or \"all-linear\"",
                  "regular expressions are not implemented");
  }
  if (chosen.empty()) config.refuse("target_modules", "must name a module");
  std::vector<std::string> result;
  for (const Linear& linear : linears())
    if (chosen.contains(linear.name)) result.emplace_back(linear.name);
  return result;
}

[[noreturn]] void refuse_name(const std::string& where, const std::string& name,
                              const std::map<std::string, Shape>& expected,
                              const ModelConfig& config) {
  std::string inner = name;
  if (inner.starts_with(kPrefix)) inner.erase(0, kPrefix.size());
  if (const int64_t layer = split_layer(inner).layer; layer >= config.num_hidden_layers)
    fail_input(
        where + ": " + in_quotes(name), "there is no such layer",
        "layer " + std::to_string(layer) + " of " + std::to_string(config.num_hidden_layers));
  std::vector<std::string> names;
  for (const auto& [known, shape] : expected) names.push_back(peft_name(known));
  fail_input(where + ": " + in_quotes(name), "the adapter's configuration implies no such tensor",
             "", "nearest: " + nearest_name(name, names));
}

// One tensor as f32, with its shape and values checked.
Tensor read_tensor(const SafetensorsFile& file, const std::string& stored, const Shape& shape) {
  const std::string where = file.file().path().string() + ": " + stored;
  const SafetensorsEntry& entry = file.entry(stored);
  if (entry.shape != shape)
    fail_input(where, "the shape must be " + shape_text(shape), shape_text(entry.shape),
               "rank and base model must be those of adapter_config.json");
  const std::optional<DType> dtype = dtype_from_safetensors(entry.dtype);
  if (!dtype || !is_float(*dtype))
    fail_input(where, "adapter tensors must be F32, BF16 or F16", std::string(entry.dtype));
  Tensor tensor = file.get(stored);
  tensor = tensor.dtype() == DType::kF32 ? tensor.clone() : tensor.to(DType::kF32);
  check_finite(tensor, where);
  return tensor;
}

}  // namespace

std::string peft_name(std::string_view name) {
  return std::string(kPrefix) + std::string(name) + std::string(kSuffix);
}

std::map<std::string, Shape> expected_adapter(const LoraSpec& lora, const ModelConfig& config) {
  std::map<std::string, Shape> result;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    for (const Linear& linear : linears()) {
      if (!lora.has(linear.name)) continue;
      const std::string module =
          "model.layers." + std::to_string(layer) + "." + std::string(linear.module);
      result[module + ".lora_A"] = {lora.rank, linear.in(config)};
      result[module + ".lora_B"] = {linear.out(config), lora.rank};
    }
  return result;
}

void check_finite(const Tensor& tensor, const std::string& where) {
  const std::span<const float> values = tensor.values<float>();
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      fail_input(where, "adapter values must be finite",
                 std::to_string(values[i]) + " at element " + std::to_string(i));
}

Adapter parse_adapter_config(const Json& json, std::string_view where) {
  const ConfigReader config(json, std::string(where));
  if (config.text("peft_type") != "LORA")
    config.refuse("peft_type", "this kind of adapter is not implemented", "implemented: LORA");
  if (config.text("task_type", "CAUSAL_LM") != "CAUSAL_LM")
    config.refuse("task_type", "this task is not implemented", "implemented: CAUSAL_LM");
  if (config.text("bias", "none") != "none")
    config.refuse("bias", "trained biases are not implemented", "implemented: none");
  check_initialiser(config);
  check_other_keys(json, config);
  Adapter adapter;
  // peft takes 8 for either when absent: a wrong scale without an error.
  adapter.lora.rank = config.whole("r", 1, kMaxLoraRank);
  adapter.lora.alpha = config.positive("lora_alpha");
  adapter.lora.rslora = config.flag("use_rslora", false);
  adapter.lora.targets = read_targets(config);
  adapter.base_model_name = config.text("base_model_name_or_path", "");
  return adapter;
}

Adapter read_peft_adapter(const fs::path& directory, const ModelConfig& config) {
  const fs::path config_path = directory / kAdapterConfigFile;
  const fs::path weights_path = directory / kAdapterWeightsFile;
  Adapter adapter = parse_adapter_config(
      read_json_file(config_path, {.max_bytes = size_t{4} << 20, .max_depth = 32}),
      config_path.string());
  std::error_code unreadable;
  if (!fs::exists(weights_path, unreadable) &&
      fs::exists(directory / "adapter_model.bin", unreadable))
    fail_input(weights_path.string(), "the file is missing", "adapter_model.bin",
               "save the adapter as safetensors (peft does by default)");
  const SafetensorsFile file = SafetensorsFile::open(weights_path);
  const std::map<std::string, Shape> expected = expected_adapter(adapter.lora, config);
  std::set<std::string> wanted;
  for (const auto& [name, shape] : expected) wanted.insert(peft_name(name));
  for (const std::string& name : file.names())
    if (!wanted.contains(name)) refuse_name(weights_path.string(), name, expected, config);
  for (const auto& [name, shape] : expected) {
    const std::string stored = peft_name(name);
    if (!file.has(stored))
      fail_input(weights_path.string() + ": " + stored, "the tensor is missing",
                 std::to_string(file.names().size()) + " of " + std::to_string(expected.size()) +
                     " tensors");
    adapter.tensors.emplace(name, read_tensor(file, stored, shape));
  }
  return adapter;
}

}  // namespace npu
