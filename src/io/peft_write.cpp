// Writing PEFT adapters: the subset of adapter_config.json that old and new readers share, f32
// tensors, and a second look at both before anything takes its final name.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/peft_format.h"
#include "io/safetensors.h"

namespace npu {
namespace {

// A whole alpha as an integer: PEFT's type for it.
Json alpha_value(double alpha) {
  if (alpha == std::floor(alpha) && alpha < 1e15) return static_cast<int64_t>(alpha);
  return alpha;
}

// Sorted by key, as peft writes it.
Json adapter_config(const Adapter& adapter) {
  std::vector<std::string> targets = adapter.lora.targets;
  std::sort(targets.begin(), targets.end());
  return {{"alpha_pattern", Json::object()},
          {"auto_mapping", nullptr},
          {"base_model_name_or_path", adapter.base_model_name},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"layer_replication", nullptr},
          {"layers_pattern", nullptr},
          {"layers_to_transform", nullptr},
          {"loftq_config", Json::object()},
          {"lora_alpha", alpha_value(adapter.lora.alpha)},
          {"lora_dropout", 0.0},
          {"modules_to_save", nullptr},
          {"peft_type", "LORA"},
          {"r", adapter.lora.rank},
          {"rank_pattern", Json::object()},
          {"revision", nullptr},
          {"target_modules", targets},
          {"task_type", "CAUSAL_LM"},
          {"use_dora", false},
          {"use_rslora", adapter.lora.rslora}};
}

// The caller's tensors must be those that the spec implies; values are the user's concern.
void check_tensors(const Adapter& adapter, const ModelConfig& config, const std::string& where) {
  const std::map<std::string, Shape> expected = expected_adapter(adapter.lora, config);
  NPU_CHECK(adapter.tensors.size() == expected.size(), std::to_string(adapter.tensors.size()) +
                                                           " adapter tensors instead of " +
                                                           std::to_string(expected.size()));
  for (const auto& [name, tensor] : adapter.tensors) {
    const auto found = expected.find(name);
    NPU_CHECK(found != expected.end(), name + " is no adapter tensor of this model");
    NPU_CHECK(tensor.dtype() == DType::kF32 && tensor.shape() == found->second,
              name + " must be f32 " + shape_text(found->second));
    check_finite(tensor, where + ": " + peft_name(name));
  }
}

// What was written reads back as the same adapter.
void check_written(const fs::path& directory, const Adapter& adapter, const ModelConfig& config) {
  const Adapter read = read_peft_adapter(directory, config);
  NPU_CHECK(read.lora.rank == adapter.lora.rank && read.lora.alpha == adapter.lora.alpha &&
                read.lora.rslora == adapter.lora.rslora &&
                read.lora.targets == adapter.lora.targets,
            "adapter_config.json differs from what was written");
  for (const auto& [name, tensor] : adapter.tensors) {
    const Tensor& other = read.tensors.at(name);
    if (std::memcmp(tensor.data(), other.data(), tensor.bytes()) != 0)
      fail(ErrorKind::kRetriable, directory.string() + ": " + name,
           "the tensor reads back with other values", "", "check the disk");
  }
}

void move_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error)
    fail(errno_kind(error.value()), to.string(), "the file can't be put in place", error.message());
}

}  // namespace

void write_peft_adapter(const fs::path& directory, const Adapter& adapter,
                        const ModelConfig& config) {
  check_tensors(adapter, config, (directory / kAdapterWeightsFile).string());
  // Staged inside, so that other files of the output directory (logs, checkpoints) stay. Never
  // committed: the two files move out of it.
  const StagedDirectory staged(directory / "adapter_model");
  std::map<std::string, Tensor> tensors;
  for (const auto& [name, tensor] : adapter.tensors) tensors.emplace(peft_name(name), tensor);
  write_safetensors(staged.path() / kAdapterWeightsFile, tensors);
  publish_text(staged.path() / kAdapterConfigFile, adapter_config(adapter).dump(2) + "\n");
  check_written(staged.path(), adapter, config);
  // The configuration goes first and comes last: without it a directory is no adapter to any
  // reader.
  std::error_code absent;
  fs::remove(directory / kAdapterConfigFile, absent);
  for (const std::string_view file : {kAdapterWeightsFile, kAdapterConfigFile})
    move_file(staged.path() / file, directory / file);
}

}  // namespace npu
