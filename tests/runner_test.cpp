// Properties of the runner that hold whatever the numbers: packing, blocks, parts, recomputing.
#include <gtest/gtest.h>

#include "golden_fixture.h"
#include "train/check.h"
#include "train/trainer.h"

namespace npu {
namespace {

RunResult result_of(const Golden& golden, const GoldenRun& run) {
  auto runner = golden.runner(run);
  return run_once(*runner, golden.parameters(), golden.batch);
}

void expect_same_bits(const RunResult& a, const RunResult& b) {
  EXPECT_EQ(a.loss, b.loss);
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    const auto x = a.parameters[i].grad.values<float>(), y = b.parameters[i].grad.values<float>();
    EXPECT_TRUE(std::equal(x.begin(), x.end(), y.begin())) << a.parameters[i].name;
  }
}

class RunnerTest : public testing::TestWithParam<std::string> {
 protected:
  Golden golden{"llama_tiny"};
  GoldenRun run{.backend = GetParam()};
};

// Documents packed in one sequence give the gradients that they give alone.
TEST_P(RunnerTest, PackedDocumentsEqualLoneOnes) {
  const int64_t s = golden.batch.seq_len;
  const std::vector<int64_t> lengths = {9, 14, s - 9 - 14 - 3};  // three rows of padding
  run.batch = 1;
  auto runner = golden.runner(run);
  Batch packed = padding_batch(1, s);
  std::vector<Parameter> sum = golden.parameters();
  runner->set_adapter(sum);
  double alone = 0;
  int64_t start = 0;
  for (size_t d = 0; d < lengths.size(); ++d) {
    Batch lone = padding_batch(1, s);
    for (int64_t i = 0; i < lengths[d]; ++i) {
      const size_t from = static_cast<size_t>(start + i), to = static_cast<size_t>(i);
      for (Batch* b : {&packed, &lone}) {
        const size_t row = b == &packed ? from : to;
        b->input_ids[row] = b->labels[row] = golden.batch.input_ids[from];
        b->segments[row] = b == &packed ? static_cast<int32_t>(d) : 0;
        b->positions[row] = static_cast<int32_t>(i);
      }
    }
    alone += runner->forward_backward(lone, 1.0, sum).take().nats;
    start += lengths[d];
  }
  std::vector<Parameter> together = golden.parameters();
  const LossSum loss = runner->forward_backward(packed, 1.0, together).take();
  EXPECT_EQ(loss.tokens, start - 3);
  EXPECT_NEAR(loss.nats / alone, 1.0, 1e-6);
  for (size_t i = 0; i < sum.size(); ++i) {
    EXPECT_LE(difference(together[i].grad, sum[i].grad).rel_l2, 1e-5) << sum[i].name;
  }
}

// What stands in padding rows, and in another document, changes nothing.
TEST_P(RunnerTest, OtherDocumentsLeaveNoTrace) {
  const int64_t s = golden.batch.seq_len;
  run.batch = 1;
  auto runner = golden.runner(run);
  runner->set_adapter(golden.parameters());
  Batch batch = padding_batch(1, s);
  for (int64_t i = 0; i < 20; ++i) {
    const size_t row = static_cast<size_t>(i);
    batch.input_ids[row] = golden.batch.input_ids[row];
    batch.segments[row] = i < 8 ? 0 : 1;
    batch.positions[row] = static_cast<int32_t>(i < 8 ? i : i - 8);
  }
  const std::vector<RowTarget> targets = {{10, 3}, {19, 5}};
  const auto before = runner->score(batch, targets).take();
  for (size_t row = 0; row < 8; ++row) batch.input_ids[row] = 17;
  for (size_t row = 20; row < static_cast<size_t>(s); ++row) batch.input_ids[row] = 23;
  const auto after = runner->score(batch, targets).take();
  for (size_t i = 0; i < targets.size(); ++i) EXPECT_EQ(before[i].log_prob, after[i].log_prob);
}

TEST_P(RunnerTest, LossRowBlocksAndVocabularyChunksDoNotMatter) {
  const RunResult whole = result_of(golden, run);
  run.loss_rows = 16;
  run.vocab_chunk = 96;
  const RunResult blocks = result_of(golden, run);
  EXPECT_NEAR(blocks.loss / whole.loss, 1.0, 1e-6);
  for (size_t i = 0; i < whole.parameters.size(); ++i) {
    EXPECT_LE(difference(blocks.parameters[i].grad, whole.parameters[i].grad).rel_l2, 1e-5);
  }
}

// The first `tokens` tokens of the golden batch's first sequence, padded to `seq_len`.
Batch prefix(const Golden& golden, int64_t tokens, int64_t seq_len) {
  Batch batch = padding_batch(1, seq_len);
  for (int64_t i = 0; i < tokens; ++i) {
    const size_t row = static_cast<size_t>(i);
    batch.input_ids[row] = batch.labels[row] = golden.batch.input_ids[row];
    batch.segments[row] = 0;
    batch.positions[row] = static_cast<int32_t>(i);
  }
  batch.num_documents = 1;
  return batch;
}

// A runner of several lengths gives, bit for bit, what a runner of each length alone gives, in any
// order: they share weights and memory.
TEST_P(RunnerTest, BucketsEqualRunnersOfTheirLength) {
  run.batch = 1;
  const int64_t s = golden.batch.seq_len;
  const Batch short_one = prefix(golden, 7, 8), middle = prefix(golden, 16, 16),
              long_one = prefix(golden, s - 1, s);
  run.loss_rows = 32;
  run.shorter = {{8, 8}, {16, 12}};
  auto runner = golden.runner(run);
  EXPECT_EQ(runner->seq_lens(), (std::vector<int64_t>{8, 16, s}));
  const auto alone = [&](const Batch& batch, int64_t loss_rows) {
    GoldenRun single = run;
    single.shorter.clear();
    single.seq_len = batch.seq_len;
    single.loss_rows = loss_rows;
    auto lone = golden.runner(single);
    return run_once(*lone, golden.parameters(), batch);
  };
  const RunResult expected_short = alone(short_one, 8), expected_middle = alone(middle, 12),
                  expected_long = alone(long_one, 32);
  for (int i = 0; i < 2; ++i) {
    expect_same_bits(run_once(*runner, golden.parameters(), long_one), expected_long);
    expect_same_bits(run_once(*runner, golden.parameters(), short_one), expected_short);
    expect_same_bits(run_once(*runner, golden.parameters(), middle), expected_middle);
  }
}

// Short buckets cost no memory: they run in the long one's.
TEST_P(RunnerTest, BucketsShareTheLongestOnesMemory) {
  run.batch = 1;
  const auto one = golden.runner(run);
  run.shorter = {{8, 8}, {16, 16}};
  EXPECT_EQ(golden.runner(run)->device_bytes(), one->device_bytes());
}

// Padding a document to another length leaves loss and gradient as they are, and a step over
// micro-batches of several lengths takes the mean over all their tokens.
TEST_P(RunnerTest, AStepMixesLengths) {
  run.batch = 1;
  const int64_t s = golden.batch.seq_len;
  run.shorter = {{8, 8}};
  auto runner = golden.runner(run);
  TrainConfig config;
  config.grad_clip = 0;
  const auto gradients = [&](const std::vector<Batch>& step) {
    Trainer trainer(*runner, golden.parameters(), config);
    const StepReport report = trainer.train_step(step).take();
    return RunResult{report.loss, trainer.parameters()};
  };
  const RunResult mixed = gradients({prefix(golden, 7, 8), prefix(golden, 20, s)});
  const RunResult padded = gradients({prefix(golden, 7, s), prefix(golden, 20, s)});
  EXPECT_NEAR(mixed.loss / padded.loss, 1.0, 1e-6);
  for (size_t i = 0; i < mixed.parameters.size(); ++i) {
    EXPECT_LE(difference(mixed.parameters[i].grad, padded.parameters[i].grad).rel_l2, 1e-5);
  }
}

// Position tables and mask stay on the device while the layout does, and only then.
TEST_P(RunnerTest, ALayoutThatChangesIsSeen) {
  run.batch = 1;
  const int64_t s = golden.batch.seq_len;
  const Batch whole = prefix(golden, 20, s);
  Batch halves = whole, restarted = whole;
  for (size_t i = 10; i < 20; ++i) {
    halves.segments[i] = 1;
    halves.positions[i] = restarted.positions[i] = static_cast<int32_t>(i - 10);
  }
  auto runner = golden.runner(run);
  const auto loss = [&](ModelRunner& r, const Batch& batch) {
    return run_once(r, golden.parameters(), batch).loss;
  };
  const double of_whole = loss(*runner, whole);
  EXPECT_EQ(loss(*runner, whole), of_whole);
  for (const Batch& other : {halves, restarted, halves}) {
    EXPECT_EQ(loss(*runner, other), loss(*golden.runner(run), other));
  }
  EXPECT_EQ(loss(*runner, whole), of_whole);
}

TEST_P(RunnerTest, RepeatsBitForBit) {
  auto runner = golden.runner(run);
  const RunResult first = run_once(*runner, golden.parameters(), golden.batch);
  const RunResult second = run_once(*runner, golden.parameters(), golden.batch);
  expect_same_bits(first, second);
}

TEST_P(RunnerTest, CheckpointContinuesBitForBit) {
  auto runner = golden.runner(run);
  TrainConfig config;
  config.steps = 4;
  config.schedule = Schedule::kLinear;
  const std::span<const Batch> batch(&golden.batch, 1);
  Trainer whole(*runner, golden.parameters(), config);
  for (int i = 0; i < 4; ++i) whole.train_step(batch).take();

  Trainer first(*runner, golden.parameters(), config);
  for (int i = 0; i < 2; ++i) first.train_step(batch).take();
  std::map<std::string, Tensor> state;
  for (const auto& [name, tensor] : first.state()) state[name] = tensor.clone();
  Trainer second(*runner, golden.parameters(), config);
  second.restore(state, first.step(), 0, first.updates());
  for (int i = 0; i < 2; ++i) second.train_step(batch).take();
  for (size_t i = 0; i < whole.parameters().size(); ++i) {
    const auto x = whole.parameters()[i].value.values<float>();
    const auto y = second.parameters()[i].value.values<float>();
    EXPECT_TRUE(std::equal(x.begin(), x.end(), y.begin())) << whole.parameters()[i].name;
  }
}

std::string plain(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, RunnerTest, testing::ValuesIn(backends_under_test()), plain);

// On the reference kernels neither cutting into parts nor recomputing moves a bit.
TEST(RunnerReference, PartsAndRecomputingKeepEveryBit) {
  const Golden golden("llama_tiny");
  const RunResult whole = result_of(golden, {});
  for (const int64_t limit : {1, 2, 5}) {
    expect_same_bits(whole, result_of(golden, {.max_contractions = limit}));
  }
  expect_same_bits(whole, result_of(golden, {.recompute = Recompute::kLayer}));
}

TEST(RunnerReference, NonFiniteStepsAreSkippedAndCounted) {
  const Golden golden("llama_tiny");
  auto runner = golden.runner({.backend = "cpu"});
  std::vector<Parameter> broken = golden.parameters();
  broken[1].value.mutable_values<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  Trainer trainer(*runner, std::move(broken), TrainConfig{});
  const StepReport report = trainer.train_step({&golden.batch, 1}).take();
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(trainer.bad_steps_in_a_row(), 1);
  EXPECT_EQ(trainer.step(), 1);
}

}  // namespace
}  // namespace npu
