// What check and diagnose run: a model, adapters that give every gradient a value, micro-batches;
// and the sessions of the device and of its references.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "train/check.h"

namespace npu {

// One set of inputs; what is not given as a file is drawn from the seed.
struct CheckCase {
  uint64_t seed = 0;
  std::vector<Parameter> parameters;
  Batch batch;
};

struct CheckInputs {
  ModelConfig config;
  std::unique_ptr<WeightStore> weights;
  LoraSpec lora;
  std::vector<CheckCase> cases;  // --seeds of them
};
// --model with --random-weights or its own, --layers, --adapter, --batch-file, --seed, --seeds.
// A batch that is drawn has `batch` sequences of --seq-len tokens.
CheckInputs read_check_inputs(const Options& options, int64_t batch = 1);

// The run under check, with what it takes from the backend's traits filled in.
SessionOptions check_session(const Options& options, const CheckInputs& in);
// f32 throughout, with the weights as they are stored.
SessionOptions fp32_session(const SessionOptions& session, const ModelConfig& config);

// Traits::precision of the session's backend.
DType device_precision(const SessionOptions& session);

// Every case on one runner.
std::vector<RunResult> run_cases(ModelRunner& runner, const CheckInputs& in);
std::vector<RunResult> run_session(const SessionOptions& session, const CheckInputs& in,
                                   bool quiet);

}  // namespace npu
