// Training with f16 activations: the loss scale, overflow, and what a checkpoint must hold of it.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "golden_fixture.h"
#include "io/json.h"
#include "model/model.h"
#include "train/batch_inputs.h"
#include "train/check.h"
#include "train/trainer.h"

namespace npu {
namespace {

LossScaleOptions dynamic(double initial, int64_t growth_interval = 2000) {
  return {LossScaleOptions::Mode::kDynamic, initial, growth_interval};
}

TEST(LossScale, OptionNamesItsForms) {
  using enum LossScaleOptions::Mode;
  EXPECT_EQ(parse_loss_scale("auto", DType::kF16).mode, kDynamic);
  EXPECT_EQ(parse_loss_scale("auto", DType::kF16).initial, 65536);
  EXPECT_EQ(parse_loss_scale("auto", DType::kBF16).mode, kOff);
  EXPECT_EQ(parse_loss_scale("off", DType::kF16).mode, kOff);
  EXPECT_EQ(parse_loss_scale("1024", DType::kF32).mode, kFixed);
  EXPECT_EQ(parse_loss_scale("1024", DType::kF32).initial, 1024);
  for (const char* bad : {"", "0", "-1", "1e40", "nan", "inf", "2x", "on", "1000", "1000.1", "3"}) {
    EXPECT_THROW(parse_loss_scale(bad, DType::kF16), UserError) << bad;
  }
}

TEST(LossScale, HalvesOnOverflowAndDoublesAfterGoodSteps) {
  LossScaler scaler(dynamic(8, 3));
  EXPECT_TRUE(scaler.overflow());
  EXPECT_EQ(scaler.scale(), 4);
  for (int i = 0; i < 3; ++i) scaler.good_step();
  EXPECT_EQ(scaler.scale(), 8);
  // An overflow starts the count of good steps anew.
  scaler.good_step();
  scaler.good_step();
  EXPECT_TRUE(scaler.overflow());
  scaler.good_step();
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_EQ(scaler.overflows(), 2);
  // At 1 there is nothing left to halve: the step is a bad one.
  EXPECT_TRUE(scaler.overflow());
  EXPECT_TRUE(scaler.overflow());
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_FALSE(scaler.overflow());
}

TEST(LossScale, FixedAndOffNeverMove) {
  LossScaler fixed({LossScaleOptions::Mode::kFixed, 512, 1});
  EXPECT_FALSE(fixed.overflow());
  fixed.good_step();
  EXPECT_EQ(fixed.scale(), 512);
  LossScaler off({});
  EXPECT_FALSE(off.overflow());
  EXPECT_EQ(off.scale(), 1);
}

TEST(LossScale, DamagedStateIsRefused) {
  LossScaler scaler(dynamic(8));
  const float inf = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& bad : {std::vector<float>{0, 0, 0}, {inf, 0, 0}, {8, -1, 0}}) {
    EXPECT_THROW(scaler.restore(Tensor::from_f32({3}, bad)), UserError);
  }
}

// Range: no mask value, score or square may leave f16.
TEST(F16Range, MaskAndScoresStayFinite) {
  EXPECT_LT(-65504 + 3e4, mask_value(DType::kF16));
  Batch batch = padding_batch(1, 4);
  batch.segments = {0, 0, 1, -1};
  Tensor mask(DType::kF16, {1, 1, 4, 4});
  attention_mask(batch, mask);
  for (int64_t i = 0; i < mask.size(); ++i) EXPECT_TRUE(std::isfinite(element(mask, i)));
}

class F16 : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<ModelRunner> runner() const {
    GoldenRun run{.backend = GetParam()};
    run.activation_dtype = run.weight_dtype = DType::kF16;
    return golden.runner(run);
  }
  TrainConfig config(const LossScaleOptions& scale) const {
    const Json json = read_json_file(golden.directory / "golden.json");
    const Json& t = json["settings"];
    TrainConfig c;
    c.adamw = {t["lr"], t["weight_decay"], t["betas"][0], t["betas"][1], t["eps"]};
    c.schedule = parse_schedule(t["schedule"].get<std::string>());
    c.warmup = t["warmup"];
    c.steps = t["steps"];
    c.grad_clip = t["grad_clip"];
    c.loss_scale = scale;
    return c;
  }
  const Golden golden{"llama_tiny"};
};

// f16 keeps 11 bits: losses of about 6 nats follow f32's within 1e-3 over ten steps.
TEST_P(F16, TenLossesFollowF32) {
  const Json json = read_json_file(golden.directory / "golden.json");
  const auto f16 = runner();
  Trainer trainer(*f16, golden.parameters(), config(dynamic(65536)));
  for (const Json& expected : json["losses"]) {
    const StepReport report = trainer.train_step({&golden.batch, 1}).take();
    EXPECT_FALSE(report.skipped);
    EXPECT_NEAR(report.loss, expected.get<double>(), 1e-3) << "step " << report.step;
  }
}

// Without a scale the small gradients of a long batch are lost to underflow: this is what it is
// for.
TEST_P(F16, ScalingSavesGradientsFromUnderflow) {
  const auto f16 = runner(), f32 = golden.runner({.backend = "cpu"});
  const auto worst = [&](ModelRunner& run, double weight, double scale) {
    std::vector<Parameter> got = golden.parameters(), right = golden.parameters();
    run.set_adapter(got);
    f32->set_adapter(right);
    run.forward_backward(golden.batch, weight * scale, got).take();
    f32->forward_backward(golden.batch, weight, right).take();
    scale_gradients(got, 1 / scale);
    double rel = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      rel = std::max(rel, difference(got[i].grad, right[i].grad).rel_l2);
    }
    return rel;
  };
  // A weight as of a step of ten million tokens.
  EXPECT_LE(worst(*f16, 1e-7, 0x1p20), 0.02);
  EXPECT_GE(worst(*f16, 1e-7, 1), 0.2);
}

TEST_P(F16, HugeScaleIsFoundSkippedHalvedAndRecovered) {
  const auto f16 = runner();
  Trainer trainer(*f16, golden.parameters(), config(dynamic(0x1p40)));
  int64_t skipped = 0;
  StepReport report;
  do {
    const double before = trainer.loss_scaler().scale();
    report = trainer.train_step({&golden.batch, 1}).take();
    if (!report.skipped) break;
    ++skipped;
    EXPECT_TRUE(report.overflow);
    EXPECT_TRUE(std::isfinite(report.loss));
    EXPECT_EQ(trainer.loss_scaler().scale(), before / 2);
    EXPECT_EQ(trainer.updates(), 0);
    EXPECT_EQ(trainer.bad_steps_in_a_row(), 0);
    for (size_t i = 0; i < trainer.parameters().size(); ++i) {
      EXPECT_EQ(difference(trainer.parameters()[i].value, golden.parameters()[i].value).max_abs, 0);
    }
  } while (skipped < 40);
  EXPECT_GE(skipped, 10);
  EXPECT_LT(skipped, 40);
  EXPECT_EQ(trainer.loss_scaler().overflows(), skipped);
  EXPECT_EQ(trainer.updates(), 1);
  EXPECT_TRUE(std::isfinite(report.grad_norm));
}

TEST_P(F16, FixedScaleThatOverflowsIsABadStep) {
  const auto f16 = runner();
  Trainer trainer(*f16, golden.parameters(), config({LossScaleOptions::Mode::kFixed, 0x1p60}));
  const StepReport report = trainer.train_step({&golden.batch, 1}).take();
  EXPECT_TRUE(report.skipped);
  EXPECT_FALSE(report.overflow);
  EXPECT_EQ(trainer.bad_steps_in_a_row(), 1);
}

TEST_P(F16, CheckpointContinuesBitForBit) {
  const auto f16 = runner();
  const std::span<const Batch> batch(&golden.batch, 1);
  // Overflows at first, then grows every second step: both counters matter.
  const TrainConfig c = config(dynamic(0x1p24, 2));
  Trainer whole(*f16, golden.parameters(), c);
  std::vector<double> losses;
  for (int i = 0; i < 12; ++i) losses.push_back(whole.train_step(batch).take().loss);
  EXPECT_GT(whole.loss_scaler().overflows(), 0);

  Trainer first(*f16, golden.parameters(), c);
  for (int i = 0; i < 7; ++i) first.train_step(batch).take();
  std::map<std::string, Tensor> state;
  for (const auto& [name, tensor] : first.state()) state[name] = tensor.clone();
  Trainer second(*f16, golden.parameters(), c);
  second.restore(state, first.step(), first.bad_steps_in_a_row(), first.updates());
  EXPECT_EQ(second.loss_scaler().scale(), first.loss_scaler().scale());
  for (size_t i = 7; i < 12; ++i) EXPECT_EQ(second.train_step(batch).take().loss, losses[i]);
  EXPECT_EQ(second.loss_scaler().scale(), whole.loss_scaler().scale());
  EXPECT_EQ(second.loss_scaler().overflows(), whole.loss_scaler().overflows());
  for (size_t i = 0; i < whole.parameters().size(); ++i) {
    EXPECT_EQ(difference(whole.parameters()[i].value, second.parameters()[i].value).max_abs, 0);
  }
  state.erase("loss_scaler");
  EXPECT_THROW(second.restore(state, 7, 0, 0), UserError);
}

const std::string kHalfDevice = "sim:" NPU_SOURCE_DIR "/tests/profiles/half.yaml";

std::string plain(const testing::TestParamInfo<std::string>& info) {
  return info.param == "cpu" ? "cpu" : info.param == kHalfDevice ? "simulator" : "reference";
}
INSTANTIATE_TEST_SUITE_P(All, F16, testing::Values("cpu", "cpu:reference", kHalfDevice), plain);

}  // namespace
}  // namespace npu
