// Watching a run against a reference: what is measured, and which groups are moved.
#include "train/drift.h"

#include <gtest/gtest.h>

#include <cmath>

#include "golden_fixture.h"
#include "train/runner_weights.h"
#include "train/trainer.h"

namespace npu {
namespace {

class Drift : public testing::Test {
 protected:
  std::unique_ptr<ModelRunner> runner(const std::string& backend, DType dtype) const {
    GoldenRun run{.backend = backend};
    run.activation_dtype = dtype;
    return golden.runner(run);
  }
  const Golden golden{"llama_tiny"};
};

TEST_F(Drift, MeasuresWhatSeparatesARunFromItsReference) {
  int made = 0;
  DriftMonitor monitor([&] {
    ++made;
    return runner("cpu", DType::kF32);
  });
  const std::vector<Parameter> parameters = golden.parameters();
  const auto same = runner("cpu", DType::kF32), rounded = runner("cpu", DType::kBF16);
  EXPECT_EQ(made, 0) << "the reference is made when it is needed";
  monitor.prepare();
  EXPECT_EQ(made, 1) << "or asked for";

  const DriftReport none = monitor.measure(*same, parameters, golden.batch, 1).take();
  EXPECT_EQ(none.comparison.loss_rel, 0);
  EXPECT_EQ(none.comparison.worst_grad_rel, 0);
  EXPECT_TRUE(none.within(1e-12));

  const DriftReport some = monitor.measure(*rounded, parameters, golden.batch, 1).take();
  EXPECT_GT(some.comparison.worst_grad_rel, 1e-3);
  EXPECT_GT(some.comparison.min_cosine, 0.999);
  EXPECT_TRUE(some.within(0.05));
  EXPECT_FALSE(some.within(1e-3));
  EXPECT_EQ(made, 1);
  // A scale changes nothing that is reported.
  const DriftReport scaled = monitor.measure(*rounded, parameters, golden.batch, 1024).take();
  EXPECT_NEAR(scaled.comparison.worst_grad_rel / some.comparison.worst_grad_rel, 1, 1e-3);
  const DriftReport again = monitor.measure_again(*same, golden.batch, 1024).take();
  EXPECT_EQ(again.comparison.worst_grad_rel, 0);
}

// One micro-batch weighs more than as one of many: its gradients may overflow under the run's
// scale.
TEST_F(Drift, AScaleThatOverflowsIsNoDrift) {
  const auto run = runner("cpu", DType::kF16);
  DriftMonitor monitor([&] { return runner("cpu:reference", DType::kF16); });
  TrainConfig config;
  config.loss_scale = {LossScaleOptions::Mode::kDynamic, 0x1p40};
  Trainer trainer(*run, golden.parameters(), config);
  while (trainer.train_step({&golden.batch, 1}).take().overflow) {
  }
  const double scale = trainer.loss_scaler().scale();
  EXPECT_LT(scale, 0x1p40);
  for (const double factor : {1, 8, 64}) {
    const DriftReport report =
        monitor.measure(*run, trainer.parameters(), golden.batch, factor * scale).take();
    EXPECT_TRUE(report.within(0.05)) << factor;
  }
}

TEST_F(Drift, MeasuringLeavesTheRunAsItWas) {
  const auto run = runner("cpu", DType::kBF16);
  DriftMonitor monitor([&] { return runner("cpu:reference", DType::kBF16); });
  const std::span<const Batch> batch(&golden.batch, 1);
  const auto losses = [&](bool watched) {
    Trainer trainer(*run, golden.parameters(), TrainConfig{});
    std::vector<double> out;
    for (int i = 0; i < 4; ++i) {
      out.push_back(trainer.train_step(batch).take().loss);
      if (watched) monitor.measure(*run, trainer.parameters(), golden.batch, 1).take();
    }
    return out;
  };
  EXPECT_EQ(losses(true), losses(false));
}

TEST_F(Drift, NotFiniteIsNeverWithin) {
  const auto run = runner("cpu", DType::kF32);
  DriftMonitor monitor([&] { return runner("cpu", DType::kF32); });
  std::vector<Parameter> parameters = golden.parameters();
  parameters[1].value.mutable_values<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  const DriftReport report = monitor.measure(*run, parameters, golden.batch, 1).take();
  EXPECT_FALSE(report.comparison.finite);
  EXPECT_FALSE(report.within(10));
}

// Coarse arithmetic is not gross; a wrong result is, and so is a NaN that is the device's own.
TEST(DriftReportTest, GrossIsWhatNoRoundingExplains) {
  const auto gross = [](double grad, double loss, bool finite, bool reference_finite) {
    DriftReport report;
    report.comparison.worst_grad_rel = grad;
    report.comparison.loss_rel = loss;
    report.comparison.finite = finite;
    report.reference_finite = reference_finite;
    return report.gross();
  };
  EXPECT_FALSE(gross(0.15, 0.01, true, true));
  EXPECT_TRUE(gross(0.6, 0.01, true, true));
  EXPECT_TRUE(gross(0.15, 0.06, true, true));
  EXPECT_TRUE(gross(0, 0, false, true));
  EXPECT_FALSE(gross(0, 0, false, false));
}

// The reference uses the run's weights where they lie: same bits, and no second copy.
TEST_F(Drift, ReferenceSharesTheWeights) {
  const auto run = runner("cpu", DType::kF32);
  SessionOptions session;
  session.backend = "cpu";
  session.threads = 2;
  session.graphs.layer.lora = golden.adapter.lora;
  session.graphs.layer.batch = golden.batch.batch;
  session.graphs.layer.seq_len = golden.batch.seq_len;
  session.graphs.loss_rows = 64;
  session.graphs.vocab_chunk = 128;
  const TempDir cache;
  session.compile.cache_dir = cache.path();
  const auto make = [&](bool share) {
    Prepared prepared = prepare(golden.model.config, session);
    compile(prepared);
    const auto weights = weights_of(*run, *golden.model.weights);
    return load(golden.model.config, std::move(prepared), *weights, share);
  };
  const auto copy = make(false), shared = make(true);
  int64_t weight_bytes = 0;
  for (const auto& [name, weight] : run->frozen_weights()) {
    if (name != "model.norm.weight") weight_bytes += weight.type.bytes();
  }
  // Copies also pay for alignment.
  EXPECT_LE(shared->device_bytes(), copy->device_bytes() - weight_bytes);
  const RunResult a = run_once(*copy, golden.parameters(), golden.batch);
  const RunResult b = run_once(*shared, golden.parameters(), golden.batch);
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(compare_runs(a, b).worst_grad_rel, 0);
}

TEST_F(Drift, ReferenceKeepsTheRunsDtypeAndStartsWhole) {
  SessionOptions session;
  session.backend = "cpu";
  session.activation_dtype = DType::kBF16;
  session.max_contractions = 2;
  session.host_groups = {{"fwd"}};
  session.graphs.eval = true;
  const SessionOptions reference = reference_session(session);
  EXPECT_EQ(reference.backend, "cpu:reference");
  EXPECT_EQ(reference.activation_dtype, DType::kBF16);
  EXPECT_EQ(reference.max_contractions, 0);
  EXPECT_TRUE(reference.host_groups->empty());
  EXPECT_FALSE(reference.graphs.eval);
  session.backend = "cpu:reference";
  EXPECT_EQ(reference_session(session).backend, "cpu");
}

// A device whose groups each add an error; what is on the host adds none.
struct FakeDevice {
  std::map<std::string, double> errors;
  int measured = 0;

  Result<DriftReport> measure(const HostGroups& on_host) {
    ++measured;
    DriftReport report;
    for (const auto& [group, error] : errors) {
      if (on_host.contains(group)) continue;
      report.comparison.worst_grad_rel += error;
      report.comparison.finite = report.comparison.finite && std::isfinite(error);
    }
    return report;
  }
};

const std::vector<std::string> kGroups = {"fwd", "bwd", "ce-grad"};

std::optional<HostGroups> moved(FakeDevice& device, double limit) {
  return groups_to_move(kGroups, limit,
                        [&](const HostGroups& on_host) { return device.measure(on_host); })
      .take();
}

TEST(GroupsToMove, TakesTheGroupThatHelpsMost) {
  FakeDevice device{{{"fwd", 0.10}, {"bwd", 0.02}, {"ce-grad", 0.01}}};
  EXPECT_EQ(moved(device, 0.05), (HostGroups{"fwd"}));
  EXPECT_EQ(device.measured, 3);
}

TEST(GroupsToMove, MovesMoreUntilWithin) {
  FakeDevice device{{{"fwd", 0.10}, {"bwd", 0.06}, {"ce-grad", 0.01}}};
  EXPECT_EQ(moved(device, 0.05), (HostGroups{"bwd", "fwd"}));
  EXPECT_EQ(moved(device, 0.005), (HostGroups{"bwd", "ce-grad", "fwd"}));
}

TEST(GroupsToMove, NanLeavesFirst) {
  FakeDevice device{{{"fwd", 0.10}, {"bwd", std::nan("")}, {"ce-grad", 0.01}}};
  EXPECT_EQ(moved(device, 0.2), (HostGroups{"bwd"}));
}

TEST(GroupsToMove, SaysWhenNothingHelps) {
  FakeDevice device{{{"fwd", 0.01}, {"elsewhere", 0.5}}};
  EXPECT_FALSE(moved(device, 0.05));
}

TEST(GroupsToMove, HandsErrorsOn) {
  const auto result = groups_to_move(kGroups, 0.05, [](const HostGroups&) {
    return Result<DriftReport>(Error{ErrorKind::kRetriable, "device", "lost", "", ""});
  });
  EXPECT_FALSE(result.ok());
}

}  // namespace
}  // namespace npu
