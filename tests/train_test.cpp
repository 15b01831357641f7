// The optimizer, the schedules, the host's half of the loss, and what the host prepares of a batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "train/batch_inputs.h"
#include "train/head.h"
#include "train/lora_state.h"
#include "train/optimizer.h"

namespace npu {
namespace {

TEST(Schedule, FollowsTransformers) {
  EXPECT_DOUBLE_EQ(schedule_factor(Schedule::kLinear, 0, 2, 10), 0.0);
  EXPECT_DOUBLE_EQ(schedule_factor(Schedule::kLinear, 1, 2, 10), 0.5);
  EXPECT_DOUBLE_EQ(schedule_factor(Schedule::kLinear, 2, 2, 10), 1.0);
  EXPECT_DOUBLE_EQ(schedule_factor(Schedule::kLinear, 6, 2, 10), 0.5);
  EXPECT_DOUBLE_EQ(schedule_factor(Schedule::kConstant, 9, 0, 10), 1.0);
  EXPECT_NEAR(schedule_factor(Schedule::kCosine, 5, 0, 10), 0.5, 1e-12);
  EXPECT_THROW(parse_schedule("step"), UserError);
}

// Padding rows are work: 500 micro-batches of two rows and one of 60 do not all pay for 64.
TEST(LossRows, LittlePaddingFewCalls) {
  EXPECT_EQ(choose_loss_rows(std::vector<int64_t>{16}, 128), 16);
  EXPECT_EQ(choose_loss_rows(std::vector<int64_t>{17}, 128), 24);
  EXPECT_EQ(choose_loss_rows(std::vector<int64_t>{2}, 128), 8);
  EXPECT_EQ(choose_loss_rows(std::vector<int64_t>{2}, 4), 4);  // never above B·S
  EXPECT_EQ(choose_loss_rows(std::vector<int64_t>{511, 511}, 512), 512);
  EXPECT_EQ(choose_loss_rows(std::vector<int64_t>{300}, 300), 300);
  std::vector<int64_t> mostly_few(500, 2);
  mostly_few.push_back(60);
  EXPECT_EQ(choose_loss_rows(mostly_few, 128), 8);
  const std::vector<int64_t> sst2_256 = {8, 12, 14, 16, 16, 18, 20, 26, 44};
  EXPECT_EQ(choose_loss_rows(sst2_256, 256), 32);
}

TEST(AdamW, FirstStepMovesByTheLearningRate) {
  std::vector<Parameter> p;
  p.push_back(make_parameter("w", Tensor::from_f32({2}, std::vector<float>{1.0f, -2.0f})));
  p[0].grad = Tensor::from_f32({2}, std::vector<float>{0.5f, -3.0f});
  ThreadPool pool(2);
  adamw_step(p, {.weight_decay = 0.1}, 0.01, 1, pool);
  // m̂/√v̂ = sign(g) on the first step; decay takes lr·wd of the value.
  EXPECT_NEAR(p[0].value.values<float>()[0], 1.0 * (1 - 0.001) - 0.01, 1e-6);
  EXPECT_NEAR(p[0].value.values<float>()[1], -2.0 * (1 - 0.001) + 0.01, 1e-6);
}

TEST(Clip, ScalesToTheNormAndNoFurther) {
  std::vector<Parameter> p;
  p.push_back(make_parameter("w", Tensor(DType::kF32, {2})));
  p[0].grad = Tensor::from_f32({2}, std::vector<float>{3.0f, 4.0f});
  ThreadPool pool(2);
  EXPECT_DOUBLE_EQ(global_grad_norm(p, pool), 5.0);
  clip_gradients(p, 5.0, 10.0);
  EXPECT_FLOAT_EQ(p[0].grad.values<float>()[0], 3.0f);
  clip_gradients(p, 5.0, 1.0);
  EXPECT_NEAR(global_grad_norm(p, pool), 1.0, 1e-6);
}

struct HeadCase {
  std::vector<double> logits;
  int64_t target;
};

// Feeds chunks as the head graphs would, with W = one row per column, H = 2.
struct JoinedHead {
  double log_prob, log_prob_of_logits;
  std::vector<float> dh;
};
JoinedHead joined(const HeadCase& c, size_t chunk, const std::vector<std::array<float, 2>>& w) {
  HeadJoin join(1, 2, true), loss_join(1, 2, false);
  for (size_t begin = 0; begin < c.logits.size(); begin += chunk) {
    const size_t end = std::min(c.logits.size(), begin + chunk);
    double max = -INFINITY, sum = 0, target = 0, u0 = 0, u1 = 0;
    for (size_t j = begin; j < end; ++j) max = std::max(max, c.logits[j]);
    for (size_t j = begin; j < end; ++j) {
      if (static_cast<int64_t>(j) == c.target) {
        target = c.logits[j];
        continue;
      }
      const double e = std::exp(c.logits[j] - max);
      sum += e;
      u0 += e * w[j][0];
      u1 += e * w[j][1];
    }
    const auto column = [](double x) {
      const float f = static_cast<float>(x);
      return Tensor::from_f32({1, 1}, {&f, 1});
    };
    const Tensor u = Tensor::from_f32(
        {1, 2}, std::vector<float>{static_cast<float>(u0), static_cast<float>(u1)});
    join.add(column(max), column(sum), column(target), &u);
    std::vector<float> logits(c.logits.begin() + static_cast<std::ptrdiff_t>(begin),
                              c.logits.begin() + static_cast<std::ptrdiff_t>(end));
    const std::vector<int32_t> relative = {
        static_cast<int32_t>(c.target - static_cast<int64_t>(begin))};
    loss_join.add(Tensor::from_f32({1, static_cast<int64_t>(logits.size())}, logits),
                  Tensor::from_i32({1, 1}, relative));
  }
  JoinedHead out{join.log_prob(0), loss_join.log_prob(0), std::vector<float>(2)};
  join.gradient(0, 1.0, w[static_cast<size_t>(c.target)], out.dh);
  return out;
}

TEST(HeadJoin, EqualsSoftmaxInDoubleHoweverSureTheModelIs) {
  const RandomStream random(3, "head");
  std::vector<std::array<float, 2>> w;
  for (uint64_t j = 0; j < 12; ++j) {
    w.push_back(
        {static_cast<float>(random.normal(2 * j)), static_cast<float>(random.normal(2 * j + 1))});
  }
  for (const double boost : {-30.0, 0.0, 5.0, 12.0, 30.0}) {
    for (const size_t chunk : {2, 5, 12}) {
      HeadCase c{{}, 7};
      for (uint64_t j = 0; j < 12; ++j) c.logits.push_back(random.normal(100 + j));
      c.logits[7] += boost;
      for (double& x : c.logits) x = static_cast<float>(x);
      double odds = 0, others = 0, g0 = 0, g1 = 0;  // odds = Σ_{j≠target} exp(logit_j − target)
      for (size_t j = 0; j < 12; ++j) odds += j == 7 ? 0 : std::exp(c.logits[j] - c.logits[7]);
      for (size_t j = 0; j < 12; ++j) {
        if (j == 7) continue;
        const double p = std::exp(c.logits[j] - c.logits[7]) / (1 + odds);
        others += p;
        g0 += p * w[j][0];
        g1 += p * w[j][1];
      }
      g0 -= others * w[7][0];
      g1 -= others * w[7][1];
      const JoinedHead head = joined(c, chunk, w);
      const double expected = -std::log1p(odds);
      EXPECT_NEAR(head.log_prob / expected, 1.0, 1e-6) << boost << " " << chunk;
      EXPECT_NEAR(head.log_prob_of_logits / expected, 1.0, 1e-6) << boost << " " << chunk;
      EXPECT_NEAR(head.dh[0] / g0, 1.0, 2e-5) << boost << " " << chunk;
      EXPECT_NEAR(head.dh[1] / g1, 1.0, 2e-5) << boost << " " << chunk;
    }
  }
}

TEST(RopeRows, AreTheTablesOfTheBatchsPositions) {
  ModelConfig config;
  config.head_dim = 8;
  Batch batch = padding_batch(2, 3);
  batch.positions = {0, 1, 0, 2, 5, 0};
  const RopeTables expected = rope_tables(config, batch.positions);
  const RopeRows rows(config, 6, DType::kF32);
  Tensor cos(DType::kF32, {2, 1, 3, 8}), sin = cos.clone();
  rows.fill_cos(batch, cos);
  rows.fill_sin(batch, sin);
  EXPECT_TRUE(std::ranges::equal(cos.values<float>(), expected.cos.values<float>()));
  EXPECT_TRUE(std::ranges::equal(sin.values<float>(), expected.sin.values<float>()));
  batch.positions[4] = 6;
  EXPECT_THROW(rows.fill_cos(batch, cos), InternalError);
}

TEST(Mask, IsBlockDiagonalAndCausal) {
  Batch batch = padding_batch(1, 6);
  batch.segments = {0, 0, 1, 1, 1, -1};
  Tensor mask(DType::kF32, {1, 1, 6, 6});
  attention_mask(batch, mask);
  const auto m = mask.values<float>();
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < 6; ++j) {
      const bool open = j <= i && batch.segments[static_cast<size_t>(i)] ==
                                      batch.segments[static_cast<size_t>(j)];
      EXPECT_EQ(m[static_cast<size_t>(i * 6 + j)] == 0.0f, open) << i << "," << j;
    }
  }
}

TEST(LossRows, NeverCrossDocumentsOrPadding) {
  Batch batch = padding_batch(1, 6);
  batch.segments = {0, 0, 1, 1, 1, -1};
  batch.labels = {1, 2, 3, kNoLoss, 5, 6};
  const auto rows = loss_rows(batch);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].row, 0);
  EXPECT_EQ(rows[0].target, 2);
  EXPECT_EQ(rows[1].row, 3);
  EXPECT_EQ(rows[1].target, 5);
}

TEST(LoraInit, IsKaimingUniformAndIndependentOfTargets) {
  ModelConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  LoraSpec some, all;
  all.targets = parse_targets("all");
  const auto a = init_lora(config, some, 5), b = init_lora(config, all, 5);
  EXPECT_EQ(a[0].name, b[0].name);
  EXPECT_EQ(difference(a[0].value, b[0].value).max_abs, 0.0);
  double sum = 0, largest = 0;
  for (const float x : a[0].value.values<float>()) {
    sum += x * x;
    largest = std::max(largest, static_cast<double>(std::abs(x)));
  }
  EXPECT_LE(largest, 1.0 / 8);
  EXPECT_NEAR(sum / static_cast<double>(a[0].value.size()), 1.0 / 64 / 3, 1e-3);
  EXPECT_EQ(difference(a[1].value, Tensor(DType::kF32, a[1].value.shape())).max_abs, 0.0);
}

}  // namespace
}  // namespace npu
