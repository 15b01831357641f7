// Columns that attention's mask closes: results stay those of the whole rows, and the columns are
// not computed.
#include "backend/cpu_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu_touch.h"
#include "base/random.h"
#include "cpu_calls.h"
#include "model/model.h"
#include "ops/ops.h"
#include "transform/passes.h"
#include "transform/vjp.h"

namespace npu {
namespace {

constexpr int64_t kHeads = 4, kKeyHeads = 2, kHeadDim = 16;

LayerOptions options_of(int64_t seq_len, DType dtype) {
  LayerOptions options;
  options.seq_len = seq_len;
  options.activation_dtype = options.weight_dtype = dtype;
  return options;
}

ForwardBackward layer(int64_t seq_len, DType dtype) {
  ModelConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_hidden_layers = 1;
  config.num_attention_heads = kHeads;
  config.num_key_value_heads = kKeyHeads;
  config.head_dim = kHeadDim;
  config.vocab_size = 100;
  const LayerOptions options = options_of(seq_len, dtype);
  std::vector<std::string> wrt = trained_inputs(options.lora);
  wrt.insert(wrt.begin(), "x");
  const Graph joint =
      run_passes(vjp(layer_forward(config, options), {"y"}, wrt).take(), default_passes());
  return split_joint(joint, 1, Recompute::kNone);
}

// Rows see the rows before them in their own document, which begins at the last of `starts`.
Tensor document_mask(int64_t seq_len, const std::vector<int64_t>& starts, DType dtype) {
  Tensor mask(dtype, {1, 1, seq_len, seq_len});
  for (int64_t row = 0; row < seq_len; ++row) {
    int64_t first = 0;
    for (const int64_t start : starts) first = start <= row ? start : first;
    for (int64_t col = 0; col < seq_len; ++col) {
      set_element(mask, row * seq_len + col, col >= first && col <= row ? 0.0 : mask_value(dtype));
    }
  }
  return mask;
}

NamedTensors layer_inputs(const Graph& graph, const Tensor& mask) {
  NamedTensors inputs = random_inputs(graph, 5);
  for (auto& [name, tensor] : inputs) {
    if (name == "mask") tensor = mask;
    if (!name.ends_with("weight") || tensor.shape()[0] == 1) continue;
    for (int64_t i = 0; i < tensor.size(); ++i) set_element(tensor, i, element(tensor, i) / 8);
  }
  return inputs;
}

// Windows of scores, found by a mask or by probabilities.
size_t count_score_windows(const cpu::Plan& plan) {
  return static_cast<size_t>(std::ranges::count_if(plan.stages, [](const cpu::Stage& stage) {
    return stage.window && std::ranges::find(stage.window->roles, cpu::Window::Role::kColumns) !=
                               stage.window->roles.end();
  }));
}

size_t count_windows(const cpu::Plan& plan) {
  return static_cast<size_t>(std::ranges::count_if(
      plan.stages, [](const cpu::Stage& stage) { return stage.window.has_value(); }));
}

TEST(CpuWindow, LayersHaveThem) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const auto unit :
         {cpu::ProductUnit::kBlas, cpu::ProductUnit::kVector, cpu::ProductUnit::kAmx}) {
      const ForwardBackward parts = layer(256, dtype);
      EXPECT_EQ(count_score_windows(cpu::make_plan(parts.forward, unit)), 1u) << dtype_name(dtype);
      EXPECT_EQ(count_score_windows(cpu::make_plan(parts.backward, unit)), 1u) << dtype_name(dtype);
    }
  }
}

TEST(CpuWindow, PackedDocumentsAgreeWithTheReference) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::vector<int64_t>& starts :
         {std::vector<int64_t>{0}, {0, 40}, {0, 3, 70, 71, 130}, {0, 64, 128}}) {
      const ForwardBackward parts = layer(150, dtype);
      const double bound = dtype == DType::kF32 ? 2e-6 : 0x1p-7;
      NamedTensors inputs = layer_inputs(parts.forward, document_mask(150, starts, dtype));
      expect_near_reference(parts.forward, inputs, bound);
      // Backward takes the probabilities themselves.
      const NamedTensors made = run_graph(parts.forward, inputs);
      NamedTensors backward = random_inputs(parts.backward, 6);
      for (auto& [name, tensor] : backward) {
        if (inputs.contains(name)) tensor = inputs.at(name);
        if (made.contains(name)) tensor = made.at(name);
      }
      expect_near_reference(parts.backward, backward, bound);
    }
  }
}

Graph attention(int64_t rows, int64_t cols) {
  Builder b("attention");
  const Value q = b.input("q", {DType::kF32, {1, 2, rows, kHeadDim}});
  const Value k = b.input("k", {DType::kF32, {1, 2, cols, kHeadDim}});
  const Value v = b.input("v", {DType::kF32, {1, 2, cols, kHeadDim}});
  const Value mask = b.input("mask", {DType::kF32, {1, 1, rows, cols}});
  const Value scores = ops::add(ops::matmul(q, k, {.transpose_rhs = true}), mask);
  const Value e = ops::exp(ops::sub(scores, ops::reduce_max(scores, {3})));
  const Value p = ops::div(e, ops::reduce_sum(e, {3}));
  b.output("p", p);
  b.output("out", ops::matmul(p, v));
  return std::move(b).build();
}

TEST(CpuWindow, AnyMaskAgreesWithTheReference) {
  const RandomStream random(9, "masks");
  uint64_t draw = 0;
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{96, 96}, {70, 130}, {256, 512}}) {
    const Graph graph = attention(rows, cols);
    ASSERT_GE(count_windows(cpu::make_plan(graph, cpu::ProductUnit::kAmx)), 1u);
    for (int round = 0; round < 12; ++round) {
      NamedTensors inputs = random_inputs(graph, draw++);
      Tensor& mask = inputs.at("mask");
      for (int64_t row = 0; row < rows; ++row) {
        // An open stretch with holes; now and then none at all, or every column.
        const int64_t first =
            static_cast<int64_t>(random.bits(draw++) % static_cast<uint64_t>(cols));
        const int64_t width = static_cast<int64_t>(random.bits(draw++) % 60);
        const uint64_t kind = random.bits(draw++) % 16;
        for (int64_t col = 0; col < cols; ++col) {
          const bool open = kind == 0 ? false
                            : kind == 1
                                ? true
                                : col >= first && col < first + width && (col - first) % 7 != 3;
          set_element(mask, row * cols + col, open ? 0.1 * static_cast<double>(kind) : -1e30);
        }
      }
      expect_near_reference(graph, inputs, 2e-6);
    }
  }
}

// silu's own zeros would close columns, but they are made in the stage that would look for them.
TEST(CpuWindow, WitnessesAreThereBeforeTheirStage) {
  Builder b("mlp");
  const Value x = b.input("x", {DType::kF32, {128, 64}});
  const Value gate = ops::matmul(x, b.input("gate", {DType::kF32, {64, 96}}));
  const Value up = ops::matmul(x, b.input("up", {DType::kF32, {64, 96}}));
  const Value h = ops::mul(ops::mul(gate, ops::sigmoid(gate)), up);
  b.output("y", ops::matmul(h, b.input("down", {DType::kF32, {96, 64}})));
  const Graph graph = std::move(b).build();
  EXPECT_EQ(count_windows(cpu::make_plan(graph, cpu::ProductUnit::kBlas)), 0u);
  for (const ForwardBackward& parts : {layer(128, DType::kF32), layer(128, DType::kBF16)}) {
    for (const Graph* part : {&parts.forward, &parts.backward}) {
      const cpu::Plan plan = cpu::make_plan(*part, cpu::ProductUnit::kBlas);
      for (const cpu::Stage& stage : plan.stages) {
        if (!stage.window) continue;
        for (size_t i = stage.first; i < stage.last; ++i) {
          for (const cpu::Touch& touch : cpu::touches(plan.steps[i])) {
            EXPECT_FALSE(touch.written && touch.storage == stage.window->witness.storage);
          }
        }
      }
    }
  }
}

// NaN would spread from any column that is computed: NaN + mask is NaN.
TEST(CpuWindow, ClosedColumnsAreNotComputed) {
  const int64_t size = 256;
  const Graph graph = attention(size, size);
  NamedTensors inputs = random_inputs(graph, 1);
  inputs.at("mask") = document_mask(size, {0, 128}, DType::kF32);
  const NamedTensors want = run_cpu(graph, inputs);
  for (const char* name : {"k", "v"}) {  // rows of the second document, of both heads
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t i = 128 * kHeadDim; i < size * kHeadDim; ++i) {
        set_element(inputs.at(name), head * size * kHeadDim + i, std::nan(""));
      }
    }
  }
  const NamedTensors got = run_cpu(graph, inputs);
  for (const auto& [name, cols] : {std::pair<std::string, int64_t>{"p", size}, {"out", kHeadDim}}) {
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t i = 0; i < 128 * cols; ++i) {
        const int64_t at = head * size * cols + i;
        ASSERT_EQ(element(got.at(name), at), element(want.at(name), at)) << name << " " << at;
      }
      EXPECT_TRUE(std::isnan(element(
          got.at(name), head * size * cols + 200 * cols + std::min<int64_t>(cols - 1, 150))))
          << name;  // row 200
    }
  }
}

// What looks like attention but lets closed columns be felt has no window.
TEST(CpuWindow, OnlyWhereClosedColumnsCannotBeFelt) {
  const auto windows = [](auto&& finish) {
    Builder b("scores");
    const Value q = b.input("q", {DType::kF32, {1, 2, 96, kHeadDim}});
    const Value mask = b.input("mask", {DType::kF32, {1, 1, 96, 96}});
    const Value scores = ops::add(ops::matmul(q, q, {.transpose_rhs = true}), mask);
    const Value shifted = ops::sub(scores, ops::reduce_max(scores, {3}));
    b.output("out", finish(b, scores, shifted));
    return count_windows(cpu::make_plan(std::move(b).build(), cpu::ProductUnit::kAmx));
  };
  EXPECT_EQ(windows([](Builder&, Value, Value shifted) { return ops::exp(shifted); }), 1u);
  EXPECT_EQ(windows([](Builder&, Value scores, Value) { return scores; }), 0u);
  EXPECT_EQ(
      windows([](Builder&, Value, Value shifted) {
        return ops::reduce_sum(ops::slice(ops::exp(shifted), {0, 0, 0, 0}, {1, 2, 96, 48}), {3});
      }),
      0u);
  EXPECT_EQ(windows([](Builder&, Value, Value shifted) { return ops::neg(shifted); }), 0u);
  EXPECT_EQ(windows([](Builder&, Value, Value shifted) { return ops::exp(ops::neg(shifted)); }),
            0u);
  EXPECT_EQ(windows([](Builder&, Value scores, Value) { return ops::reduce_sum(scores, {3}); }),
            0u);
  EXPECT_EQ(windows([](Builder& b, Value, Value shifted) {
              const Value one = ops::constant(b, {DType::kF32, {1, 1, 1, 1}}, 1.0);
              return ops::add(ops::exp(shifted), one);
            }),
            0u);
}

TEST(CpuWindow, RangesGrowByWholeSteps) {
  cpu::Window window;
  window.cols = 100;
  window.additive = true;
  std::vector<float> row(100, -1e30f);
  const auto widened = [&](cpu::ColumnRange range) {
    cpu::widen_to_row(window, DType::kF32, reinterpret_cast<const std::byte*>(row.data()), range);
    return std::pair(range.first, range.last);
  };
  const cpu::ColumnRange none{100, 0};
  EXPECT_EQ(widened(none), std::pair(int64_t{0}, int64_t{100})) << "a row that is all closed";
  row[40] = 0;
  EXPECT_EQ(widened(none), std::pair(int64_t{32}, int64_t{64}));
  EXPECT_EQ(widened({64, 96}), std::pair(int64_t{32}, int64_t{96}));
  row[99] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(widened(none), std::pair(int64_t{32}, int64_t{100}));
  window.additive = false;
  std::fill(row.begin(), row.end(), 0.0f);
  EXPECT_EQ(widened(none), std::pair(int64_t{100}, int64_t{0})) << "nothing but zeros";
  EXPECT_EQ(widened({32, 64}), std::pair(int64_t{32}, int64_t{64}));
  row[7] = -0.0f;
  row[70] = 1e-30f;
  EXPECT_EQ(widened(none), std::pair(int64_t{64}, int64_t{96}));
}

}  // namespace
}  // namespace npu
