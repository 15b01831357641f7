// Checkpoints: OUT/checkpoints/step-N/{state.safetensors,state.json}, written whole or not at all.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "io/dataset.h"
#include "train/trainer.h"

namespace npu {

// What besides tensors must match or be restored.
struct CheckpointInfo {
  int64_t step = 0;
  int64_t bad_steps = 0;
  int64_t updates = 0;
  Batcher::Position position;
  double tokens = 0;                     // counter of the log
  std::vector<std::string> placement;    // groups on the host when the run began
  std::vector<std::string> host_groups;  // moved to the host while running
  std::string data_sha256;               // of the tokenised rows and the model's weights
  std::string options_digest;            // of the options that change the mathematics
};

void save_checkpoint(const fs::path& out_directory, const Trainer& trainer,
                     const CheckpointInfo& info, int64_t keep);

// The newest checkpoint in OUT/checkpoints, or nothing. `wanted` is auto or a checkpoint directory.
std::optional<fs::path> find_checkpoint(const fs::path& out_directory, const std::string& wanted);

// The groups on the host of the run that wrote it, which --host-parts auto goes on with.
std::vector<std::string> checkpoint_placement(const fs::path& directory);

// Restores the trainer. Data, placement or options of another run are a kBadInput UserError.
CheckpointInfo load_checkpoint(const fs::path& directory, Trainer& trainer,
                               const CheckpointInfo& expected);

}  // namespace npu
