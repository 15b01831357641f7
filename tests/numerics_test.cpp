// Where each rounding policy rounds, read off the graphs; and that the policies train.
#include <gtest/gtest.h>

#include <map>

#include "golden_fixture.h"
#include "ir/text.h"
#include "train/check.h"

namespace npu {
namespace {

LayerOptions layer_options(Numerics numerics, DType dtype) {
  LayerOptions options;
  options.batch = 1;
  options.seq_len = 8;
  options.activation_dtype = options.weight_dtype = dtype;
  options.numerics = numerics;
  return options;
}

ModelConfig small_config() {
  ModelConfig config;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 8;
  config.vocab_size = 32;
  return config;
}

// Nodes by "op dtype": "convert bf16" is a rounding, "convert f32" a widening.
std::map<std::string, int> census(const Graph& graph) {
  std::map<std::string, int> counts;
  for (const Node& node : graph.nodes()) {
    ++counts[std::string(node.is_input() ? "input" : node.op->name) + " " +
             std::string(dtype_name(node.type.dtype))];
  }
  return counts;
}

std::map<std::string, int> layer_census(Numerics numerics) {
  return census(layer_forward(small_config(), layer_options(numerics, DType::kBF16)));
}

TEST(NumericsGraph, HfRoundsAfterEachOp) {
  auto n = layer_census(Numerics::kHf);
  // Two norms, two adapted linears, the softmax, silu.
  EXPECT_EQ(n["convert bf16"], 6);
  EXPECT_EQ(n["convert f32"], 7);
  // Norm weights 2, RoPE 4, 1/√D, SwiGLU's product.
  EXPECT_EQ(n["mul bf16"], 8);
  // RoPE 2, mask, residual 2.
  EXPECT_EQ(n["add bf16"], 5);
}

TEST(NumericsGraph, VllmRoundsRopeSwigluAndResidualNormsOnce) {
  auto n = layer_census(Numerics::kVllm);
  // Two norms, two adapted linears, q and k after RoPE, the softmax, SwiGLU, the residual twice.
  EXPECT_EQ(n["convert bf16"], 10);
  // Norm weights 2, the adapters' input and base products 3, q and k, cos and sin, scores, and
  // each sum's two terms (4), gate and up.
  EXPECT_EQ(n["convert f32"], 16);
  // What is left to 16 bits is attention: 1/√D and the mask.
  EXPECT_EQ(n["mul bf16"], 1);
  EXPECT_EQ(n["add bf16"], 1);
}

TEST(NumericsGraph, Fp32OnlyWidensWeights) {
  auto n = layer_census(Numerics::kFp32);
  EXPECT_EQ(n["convert f32"], 7);
  for (const auto& [key, count] : n) {
    EXPECT_TRUE(key == "input bf16" || !key.ends_with(" bf16")) << key << " " << count;
  }
}

// The norm of a vllm layer reads the unrounded sum; the next sum starts from the rounded one.
TEST(NumericsGraph, VllmStreamIsF32BetweenLayers) {
  for (const auto& [numerics, stream] : {std::pair{Numerics::kHf, DType::kBF16},
                                         {Numerics::kVllm, DType::kF32},
                                         {Numerics::kFp32, DType::kF32}}) {
    const LayerOptions options = layer_options(numerics, DType::kBF16);
    const Graph layer = layer_forward(small_config(), options);
    EXPECT_EQ(layer.node(layer.find_output("y")).type.dtype, stream);
    const Graph norm = final_norm(small_config(), options, 4);
    EXPECT_EQ(norm.node(norm.find_output("h")).type.dtype, options.compute_dtype());
    EXPECT_EQ(options.stream_dtype(), stream);
  }
}

TEST(NumericsGraph, F32ActivationsMakeAllPoliciesOneGraph) {
  const auto text = [](Numerics numerics) {
    return print_graph(layer_forward(small_config(), layer_options(numerics, DType::kF32)));
  };
  EXPECT_EQ(text(Numerics::kHf), text(Numerics::kVllm));
  EXPECT_EQ(text(Numerics::kHf), text(Numerics::kFp32));
}

TEST(NumericsNames, RoundTrip) {
  for (const Numerics numerics : kAllNumerics) {
    EXPECT_EQ(parse_numerics(numerics_name(numerics)), numerics);
  }
  EXPECT_FALSE(parse_numerics("bf16"));
}

class NumericsRun : public testing::TestWithParam<std::string> {};

// Every policy gives the f32 gradients to within what its 16-bit roundings explain: a value of bf16
// is off by 2^-9, and some thirty of them lie on a gradient's way through the tiny model.
TEST_P(NumericsRun, GradientsFollowF32) {
  const Golden golden("llama_tiny");
  const auto result = [&](Numerics numerics) {
    GoldenRun run{.backend = GetParam()};
    run.activation_dtype = DType::kBF16;
    run.numerics = numerics;
    auto runner = golden.runner(run);
    return run_once(*runner, golden.parameters(), golden.batch);
  };
  const RunResult exact = result(Numerics::kFp32);
  for (const Numerics numerics : {Numerics::kHf, Numerics::kVllm}) {
    const Comparison c = compare_runs(result(numerics), exact);
    EXPECT_TRUE(c.finite);
    EXPECT_LE(c.loss_rel, 2e-3) << numerics_name(numerics);
    EXPECT_GE(c.min_cosine, 0.999) << numerics_name(numerics);
    EXPECT_GT(c.worst_grad_rel, 1e-4) << numerics_name(numerics) << " did not round at all";
  }
}

std::string plain(const testing::TestParamInfo<std::string>& info) {
  return info.param == "cpu" ? "cpu" : "reference";
}
INSTANTIATE_TEST_SUITE_P(Cpu, NumericsRun, testing::Values("cpu", "cpu:reference"), plain);

}  // namespace
}  // namespace npu
