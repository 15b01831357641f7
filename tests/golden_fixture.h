// Loads a golden folder (tests/golden/make_golden.py) and runs its model on any backend.
#pragma once

#include <memory>
#include <string>

#include "base/file.h"
#include "io/hf_model.h"
#include "io/peft.h"
#include "io/safetensors.h"
#include "model/batch.h"
#include "train/lora_state.h"
#include "train/session.h"

namespace npu {

struct GoldenRun {
  std::string backend = "cpu:reference";
  Recompute recompute = Recompute::kNone;
  int64_t max_contractions = 0;
  int64_t loss_rows = 64;
  int64_t vocab_chunk = 128;  // several chunks even for the tiny vocabulary
  std::optional<DType> activation_dtype = std::nullopt;
  int64_t batch = 0, seq_len = 0;  // 0: the golden batch's
  bool eval = true;
  DType weight_dtype = DType::kF32;
  Numerics numerics = Numerics::kHf;
  std::vector<LengthBucket> shorter = {};
  bool prepack = false;
};

struct Golden {
  explicit Golden(const std::string& folder);

  fs::path directory;
  HfModel model;
  Adapter adapter;
  Batch batch;
  SafetensorsFile expected;

  std::vector<Parameter> parameters() const;
  std::unique_ptr<ModelRunner> runner(const GoldenRun& run) const;
};

// Every sequence of a [B,S] token array as one document.
Batch whole_sequences(int64_t batch, int64_t seq_len, std::vector<int32_t> input_ids,
                      std::vector<int32_t> labels);

// Backends that must be tested here: cpu:reference, cpu, and openvino:CPU where it is installed.
std::vector<std::string> backends_under_test();

}  // namespace npu
