// The parts of the cpu backend's planner: views, loops, and what the plan of known graphs looks
// like.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu_emit.h"
#include "backend/cpu_plan.h"
#include "model/model.h"
#include "ops/ops.h"
#include "transform/passes.h"
#include "transform/vjp.h"

namespace npu::cpu {
namespace {

using Strides = std::vector<std::vector<int64_t>>;

// ---- views -------------------------------------------------------------------------------------

// The element numbers that a view visits, in row-major order of its shape.
std::vector<int64_t> addresses(const View& view) {
  std::vector<int64_t> result = {view.offset};
  for (const Factor& factor : view.flattened(0, view.dims.size())) {
    std::vector<int64_t> next;
    for (const int64_t start : result) {
      for (int64_t i = 0; i < factor.size; ++i) next.push_back(start + i * factor.stride);
    }
    result = next;
  }
  return result;
}

std::vector<int64_t> counting(int64_t count) {
  std::vector<int64_t> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(i);
  return result;
}

TEST(CpuView, DenseIsOneLoop) {
  const View view = dense_view({2, 1, 3, 4});
  EXPECT_EQ(view.flattened(0, 4), (Factors{{24, 1}}));
  EXPECT_EQ(addresses(view), counting(24));
  EXPECT_EQ(view_shape(view), (Shape{2, 1, 3, 4}));
  EXPECT_TRUE(dense_view({}).dims.empty());
}

TEST(CpuView, HeadsBecomeColumnsAgain) {
  const View heads = transposed(*reshaped(dense_view({6, 8}), {2, 3, 4, 2}), {0, 2, 1, 3});
  EXPECT_EQ(view_shape(heads), (Shape{2, 4, 3, 2}));
  const auto merged = reshaped(heads, {2, 4, 6});
  ASSERT_TRUE(merged.has_value());
  EXPECT_EQ(merged->dims[2], (Factors{{3, 8}, {2, 1}}));
  // Back through the inverse: dense again.
  const auto split = reshaped(*merged, {2, 4, 3, 2});
  EXPECT_EQ(transposed(*split, {0, 2, 1, 3}), *reshaped(dense_view({6, 8}), {2, 3, 4, 2}));
}

TEST(CpuView, ReshapeFailsWhereLoopsDontDivide) {
  const View turned = transposed(dense_view({4, 6}), {1, 0});  // 6 × 4
  EXPECT_FALSE(reshaped(turned, {8, 3}).has_value());
  EXPECT_TRUE(reshaped(turned, {3, 2, 2, 2}).has_value());
}

TEST(CpuView, SliceAndBroadcast) {
  const View view = dense_view({4, 6});
  const auto window = sliced(view, {1, 2}, {3, 5});
  ASSERT_TRUE(window.has_value());
  EXPECT_EQ(addresses(*window), (std::vector<int64_t>{8, 9, 10, 14, 15, 16}));
  const View column = *sliced(view, {0, 3}, {4, 4});
  EXPECT_EQ(addresses(broadcast_to(column, {4, 2})),
            (std::vector<int64_t>{3, 3, 9, 9, 15, 15, 21, 21}));
  const View merged = *reshaped(transposed(dense_view({2, 3, 4}), {1, 0, 2}), {3, 8});
  EXPECT_FALSE(sliced(merged, {0, 1}, {3, 5}).has_value()) << "a window over two loops";
}

TEST(CpuView, CommonRowsCutToTheFinest) {
  const Factors lists[] = {{{24, 5}}, {{2, 100}, {12, 1}}, {{6, 0}, {4, 7}}};
  Strides strides;
  size_t misfit = 9;
  const auto space = common_rows(24, lists, strides, misfit);
  ASSERT_TRUE(space.has_value());
  EXPECT_EQ(space->sizes, (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(strides, (Strides{{60, 20, 5}, {100, 4, 1}, {0, 0, 7}}));
  const Factors odd[] = {{{4, 6}, {6, 1}}, {{6, 4}, {4, 1}}, {{12, 9}, {2, 1}}};
  EXPECT_FALSE(common_rows(24, odd, strides, misfit).has_value());
  EXPECT_EQ(misfit, 1u);
}

TEST(CpuView, BlasMatrices) {
  EXPECT_EQ(blas_matrix({4, 6}, {{6, 1}})->ld, 6);
  EXPECT_TRUE(blas_matrix({4, 1}, {{6, 4}})->transposed);
  EXPECT_FALSE(blas_matrix({4, 0}, {{6, 1}}).has_value()) << "rows may not overlap";
  EXPECT_FALSE(blas_matrix({4, 12}, {{6, 2}}).has_value());
  EXPECT_FALSE(blas_matrix({4, 12}, {{3, 8}, {2, 1}}).has_value());
  EXPECT_FALSE(blas_matrix({4, int64_t{1} << 32}, {{6, 1}}).has_value()) << "BLAS counts in int";
  EXPECT_EQ(blas_matrix({1, 1}, {{6, 3}})->ld, 3) << "a strided row is a transposed column";
}

// ---- loops -------------------------------------------------------------------------------------

std::vector<const LoopTable*> tables() {
  std::vector<const LoopTable*> list = {&baseline::kTable};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    list.push_back(&avx2::kTable);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    list.push_back(&avx512::kTable);
  }
#endif
  return list;
}

LoopFn loop_of(const LoopTable& table, std::string_view name, unsigned form = 0) {
  for (int i = 0; i < table.count; ++i) {
    if (table.rows[i].name == name) return table.rows[i].forms[form];
  }
  return nullptr;
}

TEST(CpuLoops, BestTableIsChosen) { EXPECT_EQ(loop_table().isa, tables().back()->isa); }

TEST(CpuLoops, ExpIsWithinTwoUlp) {
  std::vector<float> x(100000), y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = -87.3f + 176.0f * static_cast<float>(i) / static_cast<float>(x.size());
  }
  for (const LoopTable* table : tables()) {
    const int64_t n = static_cast<int64_t>(x.size());
    loop_of(*table, "exp")({y.data(), {x.data(), nullptr, nullptr}, n, {n, 0, 0}, 1, n, 1});
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(static_cast<double>(x[i]));
      const float near = static_cast<float>(exact);
      if (!std::isfinite(near)) continue;
      const double ulp = static_cast<double>(std::nextafter(near, 1e38f)) - near;
      worst = std::max(worst, std::abs(y[i] - exact) / ulp);
    }
    EXPECT_LT(worst, 2) << table->isa;
  }
}

TEST(CpuLoops, ExpAtTheEdges) {
  const float inf = std::numeric_limits<float>::infinity();
  const float x[] = {0, -0.0f, inf, -inf, 89, -104, -1e30f, 88.722f, std::nanf("")};
  for (const LoopTable* table : tables()) {
    float y[9];
    loop_of(*table, "exp")({y, {x, nullptr, nullptr}, 9, {9, 0, 0}, 1, 9, 1});
    EXPECT_EQ(y[0], 1);
    EXPECT_EQ(y[1], 1);
    EXPECT_EQ(y[2], inf);
    EXPECT_EQ(y[3], 0);
    EXPECT_EQ(y[4], inf);
    EXPECT_EQ(y[5], 0);
    EXPECT_EQ(y[6], 0);
    EXPECT_NEAR(y[7] / 3.4e38, 1, 0.01);
    EXPECT_TRUE(std::isnan(y[8]));
  }
}

// All tables do the same arithmetic; only the approximations may differ in the last bits.
TEST(CpuLoops, InstructionSetsAgree) {
  constexpr int64_t kRows = 3, kCols = 77;
  std::vector<float> a(kRows * kCols), b(a.size()), c(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = 0.37f * static_cast<float>(static_cast<int>(i * 7919 % 101) - 50);
    b[i] = 0.11f * static_cast<float>(static_cast<int>(i * 104729 % 97) - 48);
    c[i] = static_cast<float>(i % 3);
  }
  for (int row = 0; row < baseline::kTable.count; ++row) {
    const std::string name = baseline::kTable.rows[row].name;
    if (name.starts_with("store.") || name.starts_with("load.")) continue;  // tested below
    const bool approximate = name == "exp" || name == "sigmoid" || name == "log";
    for (unsigned form = 0; form < kLoopForms; ++form) {
      std::vector<std::vector<float>> results;
      for (const LoopTable* table : tables()) {
        const LoopFn loop = table->rows[row].forms[form];
        if (loop == nullptr) continue;
        std::vector<float> y(a.size(), -1.0f);
        loop({y.data(),
              {a.data(), b.data(), c.data()},
              kCols,
              {kCols, kCols, kCols},
              kRows,
              kCols,
              1});
        results.push_back(y);
      }
      for (size_t t = 1; t < results.size(); ++t) {
        for (size_t i = 0; i < a.size(); ++i) {
          const float want = results[0][i], got = results[t][i];
          if (got == want || (std::isnan(want) && std::isnan(got))) continue;
          EXPECT_NEAR(got, want, approximate ? 4e-7 * std::abs(want) : 0) << name << " " << form;
        }
      }
    }
  }
}

// Every 16-bit pattern survives load, round and store; rounding agrees with tensor/dtype.h.
TEST(CpuLoops, SixteenBitTypesRoundAsTensorsDo) {
  constexpr int64_t kCount = 65536;
  std::vector<uint16_t> bits(kCount), back(kCount);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> cells(kCount), fine(kCount);
  for (const LoopTable* table : tables()) {
    for (const bool bf16 : {true, false}) {
      const std::string type = bf16 ? "bf16" : "f16";
      const auto call = [&](const std::string& name, void* dst, const void* src) {
        loop_of(*table, name + "." + type)(
            {dst, {src, nullptr, nullptr}, kCount, {kCount, 0, 0}, 1, kCount, 1});
      };
      call("load", cells.data(), bits.data());
      call("store", back.data(), cells.data());
      for (size_t i = 0; i < bits.size(); ++i) {
        const float want = bf16 ? f32_from_bf16(bits[i]) : f32_from_f16(bits[i]);
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(cells[i]));
          continue;
        }
        EXPECT_EQ(cells[i], want) << table->isa << " " << i;
        EXPECT_EQ(back[i], bits[i]) << table->isa << " " << i;
      }
      // Between and beyond the representable numbers.
      for (size_t i = 0; i < fine.size(); ++i) {
        const uint32_t pattern = static_cast<uint32_t>(i) * 65537u * 3u + 0x0fffu;
        fine[i] = std::bit_cast<float>(pattern);
        cells[i] = fine[i];
      }
      call("round", cells.data(), cells.data());
      call("store", back.data(), cells.data());
      for (size_t i = 0; i < fine.size(); ++i) {
        if (std::isnan(fine[i])) {
          EXPECT_TRUE(std::isnan(cells[i]));
          continue;
        }
        const uint16_t want = bf16 ? bf16_from_f32(fine[i]) : f16_from_f32(fine[i]);
        EXPECT_EQ(back[i], want) << table->isa << " " << type << " " << fine[i];
      }
    }
  }
}

// ---- plans -------------------------------------------------------------------------------------

LayerOptions layer_options(int64_t seq_len) {
  LayerOptions options;
  options.seq_len = seq_len;
  return options;
}

ModelConfig smollm2() {
  ModelConfig config;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_hidden_layers = 30;
  config.num_attention_heads = 9;
  config.num_key_value_heads = 3;
  config.head_dim = 64;
  config.vocab_size = 49152;
  config.max_position_embeddings = 8192;
  return config;
}

template <class Work>
int64_t count(const Plan& plan) {
  int64_t found = 0;
  for (const Step& step : plan.steps) found += std::holds_alternative<Work>(step.work) ? 1 : 0;
  return found;
}

// The decoder layer runs without one copy of heads and without one op's own kernel: matmuls, and as
// few fused groups as their dependences allow.
TEST(CpuPlan, LayerForwardHasNoCopies) {
  const Graph graph = layer_forward(smollm2(), layer_options(128));
  const Plan plan = make_plan(graph, ProductUnit::kAmx);
  EXPECT_EQ(count<GemmStep>(plan), graph.num_contractions());
  EXPECT_EQ(count<KernelStep>(plan), 0);
  // for q, k, v; attention's output; gate and up; down
  EXPECT_EQ(count<PackStep>(plan), 4) << plan_text(plan);
  // norm; rope of q; rope of k; softmax; residual and norm; swiglu; residual
  EXPECT_EQ(count<LoopStep>(plan), 7) << plan_text(plan);
  for (const Step& step : plan.steps) {
    if (const auto* loop = std::get_if<LoopStep>(&step.work)) {
      const bool copy = loop->program.size() == 1 && loop->program[0].name.starts_with("load");
      EXPECT_FALSE(copy) << step_text(plan, step);
    }
  }
}

// 16-bit weights go into products as they lie, also where two products read one weight.
TEST(CpuPlan, SixteenBitWeightsAreNotWidenedInMemory) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    LayerOptions options = layer_options(128);
    options.weight_dtype = dtype;
    for (const Graph& graph :
         {layer_forward(smollm2(), options), ce_grad(smollm2(), options, 128, 8192)}) {
      const Plan plan = make_plan(run_passes(graph, default_passes()), ProductUnit::kAmx);
      EXPECT_EQ(plan_text(plan).find("load." + std::string(dtype_name(dtype))), std::string::npos)
          << plan_text(plan);
    }
  }
}

TEST(CpuPlan, LayerBackwardHasNoKernels) {
  const Graph forward = layer_forward(smollm2(), layer_options(128));
  std::vector<std::string> wrt = trained_inputs(LoraSpec{});
  wrt.insert(wrt.begin(), "x");
  const Graph joint = run_passes(vjp(forward, {"y"}, wrt).take(), default_passes());
  const Graph backward = split_joint(joint, 1, Recompute::kNone).backward;
  const Plan plan = make_plan(backward, ProductUnit::kAmx);
  EXPECT_EQ(count<GemmStep>(plan), backward.num_contractions());
  EXPECT_EQ(count<KernelStep>(plan), 0) << plan_text(plan);
}

// In bf16 what is widened is not copied, and what is rounded is rounded by the op that makes it or
// on its way to memory.
TEST(CpuPlan, RoundingTakesNoPassOfItsOwn) {
  LayerOptions options = layer_options(128);
  options.activation_dtype = options.weight_dtype = DType::kBF16;
  std::vector<std::string> wrt = trained_inputs(options.lora);
  wrt.insert(wrt.begin(), "x");
  const Graph joint =
      run_passes(vjp(layer_forward(smollm2(), options), {"y"}, wrt).take(), default_passes());
  const ForwardBackward split = split_joint(joint, 1, Recompute::kNone);
  for (const Graph* const graph : {&split.forward, &split.backward}) {
    const Plan plan = make_plan(*graph, ProductUnit::kAmx);
    const std::string text = plan_text(plan);
    EXPECT_NE(text.find("= store.rounded.bf16("), std::string::npos) << text;
    EXPECT_NE(text.find("= mul.bf16("), std::string::npos) << text;
    for (const Step& step : plan.steps) {
      const auto* loop = std::get_if<LoopStep>(&step.work);
      if (loop == nullptr) continue;
      for (const LoopOp& op : loop->program) {
        const bool moves = op.name == "copy" && op.dst.where == LoopArg::Where::kRegister &&
                           op.src[0].where == LoopArg::Where::kRegister;
        const size_t to = static_cast<size_t>(op.dst.index);
        EXPECT_FALSE(moves && loop->register_cols[to] == op.cols)  // a concat fills it by parts
            << step_text(plan, step);
      }
    }
  }
}

// Products of one input are one stage, wherever their order does not matter.
TEST(CpuPlan, ProductsOfOneInputAreSideBySide) {
  LayerOptions options = layer_options(128);
  options.lora.targets = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"};
  const Plan plan = make_plan(layer_forward(smollm2(), options), ProductUnit::kVector);
  std::vector<std::vector<int64_t>> widths;
  for (const Stage& stage : plan.stages) {
    if (!stage.side_by_side) continue;
    int64_t chunks = 0;
    widths.emplace_back();
    for (size_t i = stage.first; i < stage.last; ++i) {
      widths.back().push_back(std::get<GemmStep>(plan.steps[i].work).n);
      chunks += plan.steps[i].chunks();
    }
    EXPECT_EQ(plan.chunks(stage), chunks);
  }
  const std::vector<std::vector<int64_t>> expected = {
      {192, 16, 192, 16, 576, 16},  // of the norm: k, v, q, each with its lora_A
      {192, 192},                   // lora_B of k and v
      {1536, 16, 1536, 16},         // of the second norm: gate and up
      {1536, 1536}};
  EXPECT_EQ(widths, expected) << plan_text(plan);
}

// Attention's scores, softmax and mix are one stage: a thread takes a band of rows through all
// three.
TEST(CpuPlan, AttentionIsOneStage) {
  const Plan plan = make_plan(layer_forward(smollm2(), layer_options(128)), ProductUnit::kAmx);
  bool found = false;
  for (const Stage& stage : plan.stages) {
    if (stage.last - stage.first < 3) continue;
    const auto is_gemm = [&](size_t i) {
      return std::holds_alternative<GemmStep>(plan.steps[i].work);
    };
    for (size_t i = stage.first; i + 2 < stage.last; ++i) {
      found |= is_gemm(i) && !is_gemm(i + 1) && is_gemm(i + 2);
    }
  }
  EXPECT_TRUE(found) << plan_text(plan);
}

TEST(CpuPlan, SumsOfProductsAccumulateInPlace) {
  Builder b("g");
  const auto input = [&](const char* name, Shape shape) {
    return b.input(name, {DType::kF32, std::move(shape)});
  };
  const Value base = ops::matmul(input("x", {8, 4}), input("w", {4, 6}));
  const Value low = ops::matmul(input("u", {8, 2}), input("v", {2, 6}));
  b.output("y", ops::add(base, ops::mul(ops::scale(low, 2), input("s", {1, 1}))));
  const Graph graph = std::move(b).build();
  const Plan plan = make_plan(graph, ProductUnit::kAmx);
  ASSERT_EQ(plan.steps.size(), 2u) << plan_text(plan);
  const auto& second = std::get<GemmStep>(plan.steps[1].work);
  EXPECT_TRUE(second.accumulate);
  EXPECT_EQ(second.alpha, 2);
  EXPECT_GE(second.alpha_storage, 0);
  EXPECT_EQ(plan.arena_bytes, 0u);
}

TEST(CpuPlan, ArenaReusesMemory) {
  Builder b("g");
  Value x = b.input("x", {DType::kF32, {64, 64}});
  const Value w = b.input("w", {DType::kF32, {64, 64}});
  for (int i = 0; i < 20; ++i) x = ops::exp(ops::matmul(x, w));
  b.output("y", x);
  const Graph graph = std::move(b).build();
  EXPECT_LE(make_plan(graph, ProductUnit::kAmx).arena_bytes, 8u * 64 * 64 * 4)
      << plan_text(make_plan(graph, ProductUnit::kAmx));
}

}  // namespace
}  // namespace npu::cpu
