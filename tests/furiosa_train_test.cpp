// Training on stand-ins of RNGD cards: the losses of the simulated chip, bit for bit, through both
// workers, and what becomes of a run whose card is lost.
#include <gtest/gtest.h>

#include <cmath>

#include "compile_fakes.h"
#include "furiosa_cards.h"
#include "furiosa_test.h"
#include "golden_fixture.h"
#include "train/device_errors.h"
#include "train/trainer.h"

namespace npu {
namespace {

class TrainOnCards : public testing::TestWithParam<FakeRuntime> {
 protected:
  TrainOnCards() : cards(GetParam()) {}

  SessionOptions session(const Golden& golden, const std::string& backend) const {
    SessionOptions options;
    options.backend = backend;
    options.threads = 1;
    options.compile.cache_dir = cache.path();
    options.compile.worker = testing_fakes::real_worker_argv();
    options.graphs.layer.lora = golden.adapter.lora;
    options.graphs.layer.batch = golden.batch.batch;
    options.graphs.layer.seq_len = golden.batch.seq_len;
    options.graphs.layer.weight_dtype = DType::kBF16;
    options.graphs.loss_rows = golden.batch.rows();
    options.graphs.eval = false;
    return options;
  }

  // On the cards of the environment, or the simulated chip. Both take the same parts.
  std::unique_ptr<ModelRunner> runner(const Golden& golden, bool on_cards) {
    Prepared prepared = prepare(golden.model.config, session(golden, "sim:furiosa"));
    if (on_cards) prepared.backend = make_card_backend();
    EXPECT_TRUE(compile(prepared).failed.empty());
    return load(golden.model.config, std::move(prepared), *golden.model.weights);
  }

  // The backend as users have it, over the stand-in for its compiler.
  std::unique_ptr<ModelRunner> compiled_runner(const Golden& golden) {
    const fs::path bin = cards.folder.path() / "bin";
    fs::create_directory(bin);
    write_program(bin / "aarch64-linux-gnu-gcc");
    cards.variables.set("PATH", bin.string() + ":" + std::getenv("PATH"));
    cards.variables.set("NPU_LORA_FURIOSA_TCC", NPU_FAKE_TCC);
    Prepared prepared = prepare(golden.model.config, session(golden, "furiosa:1"));
    const CompileReport report = compile(prepared);
    EXPECT_TRUE(report.failed.empty()) << report.failed[0].reason;
    return load(golden.model.config, std::move(prepared), *golden.model.weights);
  }

  static std::vector<double> losses(const Golden& golden, ModelRunner& model) {
    TrainConfig config;
    config.adamw.lr = 1e-2;
    Trainer run(model, golden.parameters(), config);
    std::vector<double> result;
    for (int i = 0; i < 8; ++i) {
      result.push_back(run.train_step(std::span(&golden.batch, 1)).take().loss);
    }
    return result;
  }

  FakeCards cards;
  TempDir cache;
};
// Of the layers. TCL has no gather and no select, so parts of the head may be the host's.
int layer_parts_on_host(ModelRunner& model) {
  int count = 0;
  for (const PlannedGraph& graph : model.runtime().plan().graphs) {
    if (graph.group != "fwd" && graph.group != "bwd") continue;
    EXPECT_FALSE(graph.parts.empty());
    for (const PlannedPart& part : graph.parts) count += part.on_host ? 1 : 0;
  }
  return count;
}
INSTANTIATE_TEST_SUITE_P(Both, TrainOnCards,
                         testing::Values(FakeRuntime::kNative, FakeRuntime::kPython),
                         [](const auto& test) { return runtime_name(test.param); });

Trainer trainer(const Golden& golden, ModelRunner& runner) {
  TrainConfig config;
  config.adamw.lr = 1e-2;
  return Trainer(runner, golden.parameters(), config);
}

TEST_P(TrainOnCards, GivesTheLossesOfTheSimulatedChip) {
  const Golden golden("llama_tiny");
  const std::vector<double> simulated = losses(golden, *runner(golden, false));
  const auto model = runner(golden, true);
  EXPECT_EQ(layer_parts_on_host(*model), 0);
  EXPECT_EQ(losses(golden, *model), simulated);
  EXPECT_LT(simulated.back(), 0.98 * simulated.front()) << "it learns";
}

// From our graph to TCL, to an EDF, to the card: what differs from the simulated chip is where
// values between blocks are rounded.
TEST_P(TrainOnCards, TrainsWithWhatTheCompilerMade) {
  const Golden golden("llama_tiny");
  const std::vector<double> simulated = losses(golden, *runner(golden, false));
  const auto model = compiled_runner(golden);
  EXPECT_EQ(layer_parts_on_host(*model), 0);
  const std::vector<double> trained = losses(golden, *model);
  for (size_t i = 0; i < trained.size(); ++i) {
    EXPECT_NEAR(trained[i] / simulated[i], 1, 0.01) << i;  // as SimTraining has it
  }
  EXPECT_LT(trained.back(), 0.98 * trained.front()) << "it learns";
}

// Weights and activations were on the card: the run ends with an error that lets it start again.
TEST_P(TrainOnCards, ALostCardEndsTheRunRetriably) {
  const Golden golden("llama_tiny");
  cards.misbehave("kill_run");
  cards.variables.set("FAKE_RNGD_CALL", "9");
  const auto model = runner(golden, true);
  Trainer run = trainer(golden, *model);
  std::optional<Error> failure;
  for (int i = 0; i < 8 && !failure; ++i) {
    auto step = run.train_step(std::span(&golden.batch, 1));
    if (!step) failure = step.error();
  }
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->kind, ErrorKind::kRetriable);
  EXPECT_NE(failure->text().find("the device is lost; got killed by SIGKILL in a call"),
            std::string::npos)
      << failure->text();
  EXPECT_TRUE(model->runtime().device().lost());
  const auto refused = model->runtime().place_group(model->runtime().failed_group(), true, "");
  ASSERT_TRUE(refused.has_value());
  EXPECT_NE(refused->text().find("--resume auto"), std::string::npos) << refused->text();
}

// One failed call of a card that still works: its group moves to the host and the step is done.
TEST_P(TrainOnCards, AFailedCallMovesItsGroup) {
  const Golden golden("llama_tiny");
  cards.misbehave("fail_run");
  cards.variables.set("FAKE_RNGD_CALL", "3");
  const auto model = runner(golden, true);
  Trainer run = trainer(golden, *model);
  int moved = 0;
  for (int i = 0; i < 4; ++i) {
    const auto step = moving_failures(
        model->runtime(), [&] { return run.train_step(std::span(&golden.batch, 1)); },
        [&](const std::string&, const Error& error) {
          ++moved;
          EXPECT_NE(error.text().find("the call failed"), std::string::npos) << error.text();
        });
    ASSERT_TRUE(step.ok()) << step.error().text();
    EXPECT_TRUE(std::isfinite(step.value().loss));
  }
  EXPECT_GT(moved, 0);
  EXPECT_FALSE(model->runtime().device().lost());
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  if (const auto code = npu::run_if_device_worker(argc, argv)) return *code;
  if (const auto code = npu::testing_fakes::run_if_child(argc, argv)) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
