// A training run as its options describe it, before anything is compiled: what `train` runs and
// what `compile` and `plan` prepare.
#pragma once

#include <vector>

#include "cli/options.h"
#include "io/dataset.h"
#include "io/hf_model.h"
#include "io/peft.h"
#include "train/session.h"

namespace npu {

// The adapter that training starts from: --rank, --alpha, --targets, --rslora, or --init-adapter,
// which brings its own.
struct StartAdapter {
  LoraSpec lora;
  std::optional<Adapter> read;  // what --init-adapter holds
};
StartAdapter start_adapter(const Options& options, const ModelConfig& config);

struct TrainingData {
  Dataset train, held_out;  // held_out is empty without --eval-data
};
// --data and --eval-data as tokens, with their warnings reported. Absent --data is a kUsage error.
TrainingData load_training_data(const Options& options, const HfModel& model);

// --seq-len, --batch, --packing, --seed.
BatcherOptions batcher_options(const Options& options, const HfModel& model);

// Sizes of the graphs that training needs: with the data that it will run over, or, where `batcher`
// is null, with a head that holds every row and with evaluation.
SessionOptions training_session(const Options& options, const LoraSpec& lora,
                                const ModelConfig& config, const Batcher* batcher, bool eval);

}  // namespace npu
