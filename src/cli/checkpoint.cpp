// Checkpoints: written to a staged directory and renamed, read with every field checked.
#include "cli/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "train/model_graphs.h"

namespace npu {
namespace {

constexpr std::string_view kPrefix = "step-";

// Steps of the checkpoints in a directory, oldest first.
std::vector<int64_t> checkpoint_steps(const fs::path& directory) {
  std::vector<int64_t> steps;
  // A directory that can't be read must not look like one without checkpoints.
  if (!fs::exists(directory)) return steps;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    const std::string digits = name.substr(kPrefix.size());
    if (digits.empty() || digits.size() > 15 ||
        !std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      continue;
    }
    steps.push_back(std::stoll(digits));
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

fs::path checkpoint_path(const fs::path& out_directory, int64_t step) {
  return out_directory / "checkpoints" / (std::string(kPrefix) + std::to_string(step));
}

template <class T>
T field(const Json& json, const char* name, const fs::path& file) {
  if (!json.contains(name)) fail_input(file.string(), std::string("field ") + name + " is missing");
  try {
    return json.at(name).get<T>();
  } catch (const nlohmann::json::exception&) {
    fail_input(file.string(), std::string("field ") + name + " has the wrong type",
               json.at(name).dump());
  }
}

}  // namespace

void save_checkpoint(const fs::path& out_directory, const Trainer& trainer,
                     const CheckpointInfo& info, int64_t keep) {
  const fs::path root = out_directory / "checkpoints";
  fs::create_directories(root);
  StagedDirectory staged(checkpoint_path(out_directory, info.step));
  const std::string bytes = safetensors_bytes(trainer.state());
  publish_text(staged.path() / "state.safetensors", bytes);
  const Json json = {{"format", 1},
                     {"step", info.step},
                     {"bad_steps", info.bad_steps},
                     {"updates", info.updates},
                     {"epoch", info.position.epoch},
                     {"batch_in_epoch", info.position.batch_in_epoch},
                     {"tokens", info.tokens},
                     {"placement", info.placement},
                     {"host_groups", info.host_groups},
                     {"data_sha256", info.data_sha256},
                     {"options", info.options_digest},
                     {"state_sha256", sha256_hex(bytes)}};
  publish_text(staged.path() / "state.json", json.dump(2) + "\n");
  staged.commit();
  const std::vector<int64_t> steps = checkpoint_steps(root);
  for (size_t i = 0; i + static_cast<size_t>(std::max<int64_t>(1, keep)) < steps.size(); ++i) {
    std::error_code ignored;
    fs::remove_all(checkpoint_path(out_directory, steps[i]), ignored);
  }
}

std::optional<fs::path> find_checkpoint(const fs::path& out_directory, const std::string& wanted) {
  if (wanted != "auto") {
    if (!fs::is_directory(wanted)) {
      fail_input("--resume", "no such checkpoint directory", wanted,
                 "give auto, or a directory like OUT/checkpoints/step-100");
    }
    return fs::path(wanted);
  }
  const std::vector<int64_t> steps = checkpoint_steps(out_directory / "checkpoints");
  if (steps.empty()) return std::nullopt;
  return checkpoint_path(out_directory, steps.back());
}

std::vector<std::string> checkpoint_placement(const fs::path& directory) {
  const fs::path file = directory / "state.json";
  const auto groups = field<std::vector<std::string>>(read_json_file(file), "placement", file);
  for (const std::string& group : groups) {
    if (std::ranges::find(kPlacementGroups, group) == kPlacementGroups.end()) {
      fail_input(file.string(), "unknown group in placement", "'" + group + "'");
    }
  }
  return groups;
}

CheckpointInfo load_checkpoint(const fs::path& directory, Trainer& trainer,
                               const CheckpointInfo& expected) {
  const fs::path file = directory / "state.json";
  const Json json = read_json_file(file);
  CheckpointInfo info;
  if (field<int64_t>(json, "format", file) != 1) {
    fail_input(file.string(), "unknown checkpoint format", json["format"].dump(),
               "written by another version of npu-lora");
  }
  info.step = field<int64_t>(json, "step", file);
  info.bad_steps = field<int64_t>(json, "bad_steps", file);
  info.updates = field<int64_t>(json, "updates", file);
  info.position.epoch = field<int64_t>(json, "epoch", file);
  info.position.batch_in_epoch = field<int64_t>(json, "batch_in_epoch", file);
  info.tokens = field<double>(json, "tokens", file);
  if (json.contains("host_groups")) {
    info.host_groups = field<std::vector<std::string>>(json, "host_groups", file);
  }
  info.data_sha256 = field<std::string>(json, "data_sha256", file);
  info.options_digest = field<std::string>(json, "options", file);
  if (info.step < 0 || info.position.epoch < 0 || info.position.batch_in_epoch < 0) {
    fail_input(file.string(), "step and position must not be negative");
  }
  if (info.data_sha256 != expected.data_sha256) {
    fail_input(directory.string(), "the checkpoint was written with other data or another model",
               "sha256 " + info.data_sha256.substr(0, 12) + "…, now " +
                   expected.data_sha256.substr(0, 12) + "…",
               "resume with the same --data and --model, or start anew in another --out");
  }
  if (info.options_digest != expected.options_digest) {
    fail_input(directory.string(), "the checkpoint was written with other options",
               info.options_digest, "now " + expected.options_digest);
  }
  info.placement = checkpoint_placement(directory);
  if (info.placement != expected.placement) {
    fail_input(directory.string(), "the checkpoint was written with other groups on the host",
               names_or_none(info.placement) + ", now " + names_or_none(expected.placement),
               "resume with --host-parts " + names_or_none(info.placement));
  }
  const fs::path tensors = directory / "state.safetensors";
  const SafetensorsFile state = SafetensorsFile::open(tensors);
  if (sha256_hex(state.file().bytes()) != field<std::string>(json, "state_sha256", file)) {
    fail_input(tensors.string(), "does not match the digest in state.json", "",
               "the checkpoint is damaged; resume from an older one with --resume DIR");
  }
  std::map<std::string, Tensor> map;
  for (const std::string& name : state.names()) map[name] = state.get(name);
  trainer.restore(map, info.step, info.bad_steps, info.updates);
  return info;
}

}  // namespace npu
