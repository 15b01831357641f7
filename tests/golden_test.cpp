// Every number that transformers + PEFT wrote for the tiny models, by name, on every backend.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "golden_fixture.h"
#include "io/json.h"
#include "train/check.h"
#include "train/trainer.h"

namespace npu {
namespace {

struct Case {
  std::string folder, backend;
  Recompute recompute;
  bool prepack = false;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const char* folder : {"llama_tiny", "llama_tiny_untied"}) {
    for (const std::string& backend : backends_under_test()) {
      out.push_back({folder, backend, Recompute::kNone});
      out.push_back({folder, backend, Recompute::kLayer});
      if (make_backend(backend).take()->traits().prepack == Prepack::kNever) continue;
      out.push_back({folder, backend, Recompute::kNone, true});
      out.push_back({folder, backend, Recompute::kLayer, true});
    }
  }
  return out;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.folder + "_" + info.param.backend +
                     (info.param.recompute == Recompute::kNone ? "_keep" : "_recompute") +
                     (info.param.prepack ? "_prepack" : "");
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

class GoldenTest : public testing::TestWithParam<Case> {
 protected:
  GoldenTest() : golden(GetParam().folder) {
    run.backend = GetParam().backend;
    run.recompute = GetParam().recompute;
    run.prepack = GetParam().prepack;
  }
  Golden golden;
  GoldenRun run;
};

TEST_P(GoldenTest, LossAndEveryGradient) {
  auto runner = golden.runner(run);
  const RunResult result = run_once(*runner, golden.parameters(), golden.batch);
  const double loss = element(golden.expected.get("loss"), 0);
  EXPECT_NEAR(result.loss / loss, 1.0, 1e-5);
  for (const Parameter& p : result.parameters) {
    const Difference d = difference(p.grad, golden.expected.get(peft_name(p.name)));
    EXPECT_LE(d.rel_l2, 1e-4) << p.name;
    EXPECT_GE(d.cosine, 0.99999) << p.name;
  }
}

TEST_P(GoldenTest, LogProbabilitiesEqualTheLogits) {
  auto runner = golden.runner(run);
  runner->set_adapter(golden.parameters());
  std::vector<RowTarget> targets;
  for (int32_t row = 0; row < golden.batch.rows(); ++row) targets.push_back({row, (row * 7) % 320});
  const auto scores = runner->score(golden.batch, targets).take();
  const Tensor logits = golden.expected.get("logits");
  const int64_t vocab = golden.model.config.vocab_size;
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto row =
        logits.values<float>().subspan(i * static_cast<size_t>(vocab), static_cast<size_t>(vocab));
    const auto best = std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float x : row) sum += std::exp(static_cast<double>(x) - *best);
    const double expected = row[static_cast<size_t>(targets[i].target)] - *best - std::log(sum);
    EXPECT_NEAR(scores[i].log_prob, expected, 2e-5) << "row " << i;
    EXPECT_EQ(scores[i].argmax, best - row.begin()) << "row " << i;
  }
}

TEST_P(GoldenTest, TenAdamWLosses) {
  const Json json = read_json_file(golden.directory / "golden.json");
  const Json& t = json["settings"];
  TrainConfig config;
  config.adamw = {t["lr"], t["weight_decay"], t["betas"][0], t["betas"][1], t["eps"]};
  config.schedule = parse_schedule(t["schedule"].get<std::string>());
  config.warmup = t["warmup"];
  config.steps = t["steps"];
  config.grad_clip = t["grad_clip"];
  auto runner = golden.runner(run);
  Trainer trainer(*runner, golden.parameters(), config);
  for (size_t step = 0; step < json["losses"].size(); ++step) {
    const StepReport report = trainer.train_step({&golden.batch, 1}).take();
    EXPECT_NEAR(report.loss, json["losses"][step].get<double>(), 1e-4) << "step " << step + 1;
    EXPECT_NEAR(report.grad_norm / json["grad_norms"][step].get<double>(), 1.0, 1e-3)
        << "step " << step + 1;
  }
  const Adapter final_adapter =
      read_peft_adapter(golden.directory / "final_adapter", golden.model.config);
  for (const Parameter& p : trainer.parameters()) {
    EXPECT_LE(difference(p.value, final_adapter.tensors.at(p.name)).rel_l2, 2e-3) << p.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest, testing::ValuesIn(cases()), case_name);

// bf16 activations under --numerics hf: each rounding where transformers rounds. The two differ by
// the order of accumulation inside matmuls only, so a logit is off by one bf16 step (1/32 below 8)
// at most.
TEST(GoldenBf16, LogitsRoundAsTransformers) {
  const Golden golden("llama_tiny");
  GoldenRun run;
  run.activation_dtype = DType::kBF16;
  run.weight_dtype = DType::kBF16;
  run.batch = 1;
  auto runner = golden.runner(run);
  runner->set_adapter(golden.parameters());
  const SafetensorsFile expected =
      SafetensorsFile::open(golden.directory / "golden_bf16.safetensors");
  const int64_t s = golden.batch.seq_len;
  Batch first =
      whole_sequences(1, s, {golden.batch.input_ids.begin(), golden.batch.input_ids.begin() + s},
                      {golden.batch.labels.begin(), golden.batch.labels.begin() + s});
  std::vector<RowTarget> targets;
  for (int32_t row = 0; row < s; ++row) targets.push_back({row, (row * 7) % 512});
  const auto scores = runner->score(first, targets).take();
  const Tensor logits = expected.get("logits").to(DType::kF32);
  double worst = 0, mean = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const auto row = logits.values<float>().subspan(i * 512, 512);
    double sum = 0;
    for (const float x : row) sum += std::exp(static_cast<double>(x));
    const double log_prob = row[static_cast<size_t>(targets[i].target)] - std::log(sum);
    const double error = std::abs(scores[i].log_prob - log_prob);
    worst = std::max(worst, error);
    mean += error / static_cast<double>(targets.size());
  }
  EXPECT_LE(worst, 0.04);
  EXPECT_LE(mean, 0.01);
}

}  // namespace
}  // namespace npu
