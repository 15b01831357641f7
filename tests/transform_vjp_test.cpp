// The reverse pass against finite differences, and the division into forward and backward.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>

#include "ir/text.h"
#include "llama_layer.h"
#include "ops/ops.h"
#include "ops/table.h"
#include "random_graph.h"
#include "transform/min_cut.h"
#include "transform/passes.h"
#include "transform/vjp.h"

namespace npu {
namespace {

std::vector<std::string> output_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const GraphOutput& output : graph.outputs()) names.push_back(output.name);
  return names;
}

std::vector<std::string> input_names(const Graph& graph) {
  std::vector<std::string> names;
  for (NodeId id : graph.inputs()) names.push_back(graph.node(id).name);
  return names;
}

Graph full_vjp(const Graph& forward) {
  return vjp(forward, output_names(forward), input_names(forward)).take();
}

double inner_product(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += element(a, i) * element(b, i);
  return sum;
}

// Σ over outputs of ⟨seed, output⟩ at inputs + step · direction.
double loss_at(const Graph& graph, const NamedTensors& inputs, const NamedTensors& direction,
               double step) {
  NamedTensors moved;
  for (NodeId id : graph.inputs()) {
    const std::string& name = graph.node(id).name;
    Tensor tensor = inputs.at(name).clone();
    for (int64_t i = 0; i < tensor.size(); ++i) {
      set_element(tensor, i, element(tensor, i) + step * element(direction.at(name), i));
    }
    moved[name] = tensor;
  }
  double loss = 0;
  for (const auto& [name, value] : run_graph(graph, moved))
    loss += inner_product(inputs.at("d_" + name), value);
  return loss;
}

struct Slope {
  double expected, doubt;
};

// Central differences with two steps, extrapolated; their disagreement bounds the doubt.
Slope finite_difference(const Graph& graph, const NamedTensors& inputs,
                        const NamedTensors& direction) {
  const auto central = [&](double h) {
    return (loss_at(graph, inputs, direction, h) - loss_at(graph, inputs, direction, -h)) / (2 * h);
  };
  const double wide = central(0.02), narrow = central(0.01);
  return {narrow + (narrow - wide) / 3, std::abs(narrow - wide)};
}

TEST(Vjp, EqualsFiniteDifferencesOnRandomGraphs) {
  int conclusive = 0;
  constexpr int kGraphs = 600;
  for (uint64_t seed = 0; seed < kGraphs; ++seed) {
    const Graph graph = random_graph(seed, RandomOps::kSmooth);
    const Graph joint = full_vjp(graph);
    const NamedTensors inputs = random_inputs(joint, seed);
    const NamedTensors direction = random_inputs(graph, seed + 1000);
    const NamedTensors results = run_graph(joint, inputs);
    double slope = 0;
    for (const std::string& name : input_names(graph))
      slope += inner_product(results.at("d_" + name), direction.at(name));
    const Slope reference = finite_difference(graph, inputs, direction);
    const double scale = std::abs(slope) + std::abs(reference.expected) + 1e-2;
    ASSERT_NEAR(slope, reference.expected, 2e-2 * scale + 2 * reference.doubt)
        << "seed " << seed << "\n"
        << print_graph(graph);
    if (reference.doubt < 1e-2 * scale) ++conclusive;
  }
  EXPECT_GT(conclusive, kGraphs * 9 / 10) << "graphs too rough to judge";
}

TEST(Vjp, KeepsNamesAndOrder) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {2, 3}});
  const Value w = b.input("w", {DType::kF32, {3, 2}});
  b.input("idle", {DType::kF32, {4}});
  b.output("y", ops::matmul(x, w));
  b.output("z", ops::exp(x));
  const Graph joint = vjp(std::move(b).build(), {"y"}, {"w", "idle", "x"}).take();
  EXPECT_EQ(input_names(joint), (std::vector<std::string>{"x", "w", "idle", "d_y"}));
  EXPECT_EQ(output_names(joint), (std::vector<std::string>{"y", "z", "d_w", "d_idle", "d_x"}));
  const NamedTensors results = run_graph(joint, random_inputs(joint, 1));
  for (const float value : results.at("d_idle").values<float>()) EXPECT_EQ(value, 0.0f);
}

TEST(Vjp, AddsUpEveryUse) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {1}});
  const Value square = ops::mul(x, x);
  b.output("y", ops::add(ops::mul(square, x), square));  // x³ + x²
  const Graph joint = vjp(std::move(b).build(), {"y"}, {"x"}).take();
  const float two = 2, one = 1;
  const NamedTensors results = run_graph(
      joint, {{"x", Tensor::from_f32({1}, {&two, 1})}, {"d_y", Tensor::from_f32({1}, {&one, 1})}});
  EXPECT_EQ(results.at("d_x").values<float>()[0], 16.0f);  // 3·4 + 2·2
}

TEST(Vjp, OneOutputMayBeSeededUnderTwoNames) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {3}});
  b.output("y", ops::neg(x));
  b.output("z", ops::neg(x));
  const Graph joint = vjp(std::move(b).build(), {"y", "z"}, {"x"}).take();
  const NamedTensors inputs = random_inputs(joint, 3);
  const Tensor d_x = run_graph(joint, inputs).at("d_x");
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_FLOAT_EQ(
        static_cast<float>(element(d_x, i)),
        static_cast<float>(-element(inputs.at("d_y"), i) - element(inputs.at("d_z"), i)));
  }
}

// Only what leads from wrt to seeds is differentiated: frozen weights cost nothing.
TEST(Vjp, MakesNoGradientOfFrozenInputs) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {2, 3}});
  const Value hidden = ops::matmul(x, b.input("w1", {DType::kF32, {3, 4}}));
  b.output("y", ops::matmul(hidden, b.input("w2", {DType::kF32, {4, 5}})));
  const Graph forward = std::move(b).build();
  EXPECT_EQ(vjp(forward, {"y"}, {"x"}).take().num_contractions(), 2 + 2);
  EXPECT_EQ(vjp(forward, {"y"}, {"w2"}).take().num_contractions(), 2 + 1);
}

constexpr OpDef kStaircase = {
    .name = "staircase",
    .arity = 1,
    .attrs = {},
    .traits = {.elementwise = true},
    .summary = "floor(x).",
    .infer = [](std::span<const TensorType> in, const Attrs&) -> Result<TensorType> {
      return in[0];
    },
    .kernel = nullptr,
    .vjp = nullptr,
    .no_grad_reason = "its slope is zero or infinite",
    .onnx = nullptr,
    .openvino = nullptr,
    .samples = nullptr,
};

TEST(Vjp, NamesTheNodeWithoutDerivative) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {3}});
  const Value w = b.input("w", {DType::kF32, {3}});
  b.output("y", ops::mul(b.apply(kStaircase, {ops::exp(x)}), w));
  const Graph forward = std::move(b).build();
  const Result<Graph> refused = vjp(forward, {"y"}, {"x"});
  ASSERT_FALSE(refused.ok());
  const std::string text = refused.error().text();
  EXPECT_NE(text.find("staircase"), std::string::npos) << text;
  EXPECT_NE(text.find("its slope is zero or infinite"), std::string::npos) << text;
  // Beside the way from wrt to the seed it does no harm.
  EXPECT_TRUE(vjp(forward, {"y"}, {"w"}).ok());
}

TEST(Vjp, RefusesNamesThatMeanNothing) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {3}});
  b.input("d_taken", {DType::kF32, {3}});
  b.input("index", {DType::kI32, {3}});
  b.output("y", x);
  b.output("taken", x);
  b.output("truth", ops::compare(x, x, "eq"));
  const Graph forward = std::move(b).build();
  const auto refusal = [&](const std::string& seed, const std::string& wrt) {
    const Result<Graph> result = vjp(forward, {seed}, {wrt});
    return result.ok() ? "" : result.error().what;
  };
  EXPECT_EQ(refusal("y", "x"), "");
  EXPECT_EQ(refusal("x", "x"), "a seed names an output");
  EXPECT_EQ(refusal("y", "y"), "wrt names an input");
  EXPECT_EQ(refusal("truth", "x"), "a seed's output is float");
  EXPECT_EQ(refusal("y", "index"), "a wrt input is float");
  EXPECT_EQ(refusal("taken", "x"), "no input is named like a seed's cotangent");
}

// ---- minimum cut -------------------------------------------------------------------------------

TEST(MinCut, LiesNearestToTheSink) {
  // source → a → b → sink, all of capacity 3, and a way of capacity 2 beside b.
  FlowNetwork network;
  const int source = network.add_vertex(), a = network.add_vertex(), b = network.add_vertex(),
            sink = network.add_vertex();
  network.add_edge(source, a, 5);
  network.add_edge(a, b, 3);
  network.add_edge(b, sink, 3);
  network.add_edge(a, sink, 2);
  EXPECT_EQ(network.maximize(source, sink), 5);
  EXPECT_EQ(network.sink_side(sink), (std::vector<bool>{false, false, false, true}));
}

// Every subset of vertices that holds the source and not the sink is a cut; the best of all of them
// must equal the flow.
TEST(MinCut, EqualsTheBestOfAllCuts) {
  constexpr int kVertices = 9;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    FlowNetwork network;
    std::vector<std::array<int, 3>> edges;  // from, to, capacity
    for (int i = 0; i < kVertices; ++i) network.add_vertex();
    for (int i = 0; i < 20; ++i) {
      const int from = static_cast<int>(dice.roll(kVertices));
      const int to = static_cast<int>(dice.roll(kVertices));
      if (from == to) continue;
      edges.push_back({from, to, static_cast<int>(dice.roll(10))});
      network.add_edge(from, to, edges.back()[2]);
    }
    const auto cut = [&](auto&& on_sink_side) {
      int64_t total = 0;
      for (const auto& [from, to, capacity] : edges)
        if (!on_sink_side(from) && on_sink_side(to)) total += capacity;
      return total;
    };
    int64_t best = FlowNetwork::kUnbounded;
    for (unsigned subset = 0; subset < 1u << kVertices; ++subset) {
      const auto in_subset = [&](int vertex) { return (subset >> vertex & 1u) != 0; };
      if (in_subset(0) || !in_subset(kVertices - 1)) continue;
      best = std::min(best, cut(in_subset));
    }
    EXPECT_EQ(network.maximize(0, kVertices - 1), best);
    const std::vector<bool> side = network.sink_side(kVertices - 1);
    EXPECT_EQ(cut([&](int vertex) { return side[static_cast<size_t>(vertex)]; }), best);
  }
}

// ---- forward and backward ----------------------------------------------------------------------

int64_t saved_bytes(const ForwardBackward& split) {
  int64_t bytes = 0;
  for (const std::string& name : split.saved)
    bytes += split.forward.node(split.forward.find_output(name)).type.bytes();
  return bytes;
}

// Forward then backward give what the joint graph gives, bit for bit.
void check_split(const Graph& joint, size_t num_outputs, Recompute recompute, uint64_t seed) {
  const ForwardBackward split = split_joint(joint, num_outputs, recompute);
  const NamedTensors inputs = random_inputs(joint, seed);
  NamedTensors values = inputs;
  NamedTensors results = run_graph(split.forward, inputs);
  for (const std::string& name : split.saved) {
    values[name] = results.at(name);
    results.erase(name);
  }
  for (auto& [name, tensor] : run_graph(split.backward, values)) results[name] = tensor;
  const NamedTensors expected = run_graph(joint, inputs);
  EXPECT_EQ(results.size(), expected.size());
  EXPECT_EQ(bit_difference(results, expected), "");
}

TEST(SplitJoint, GivesTheResultsOfRandomJointGraphs) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Graph graph = random_graph(seed, RandomOps::kSmooth);
    const Graph joint = full_vjp(graph);
    for (const Recompute recompute : {Recompute::kNone, Recompute::kLayer})
      check_split(joint, graph.outputs().size(), recompute, seed);
    if (HasFailure()) FAIL() << print_graph(graph);
  }
}

// Contractions of a backward graph that depend on no seed: work of the forward done again.
int64_t contractions_without_seed(const Graph& backward, const std::vector<std::string>& seeds) {
  std::vector<bool> seeded(backward.nodes().size(), false);
  int64_t count = 0;
  for (size_t id = 0; id < seeded.size(); ++id) {
    const Node& node = backward.nodes()[id];
    if (node.is_input()) {
      for (const std::string& seed : seeds) seeded[id] = seeded[id] || node.name == "d_" + seed;
      continue;
    }
    for (NodeId operand : node.inputs)
      if (seeded[static_cast<size_t>(operand)]) seeded[id] = true;
    if (node.op->traits.contraction && !seeded[id]) ++count;
  }
  return count;
}

// All sets of seed-free values, each tried as the saved set: the minimum cut must be no larger than
// the smallest one that spares every contraction.
TEST(SplitJoint, SavesTheFewestBytesPossible) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 400 && compared < 60; ++seed) {
    const Graph graph = random_graph(seed, RandomOps::kSmooth);
    if (graph.num_contractions() == 0) continue;
    const Graph joint = full_vjp(graph);
    const ForwardBackward split = split_joint(joint, graph.outputs().size(), Recompute::kNone);
    EXPECT_EQ(contractions_without_seed(split.backward, output_names(graph)), 0);

    // Which nodes may be saved: seed-free ones. Which must be known: operands of seeded ones.
    const size_t n = joint.nodes().size();
    std::vector<bool> seeded(n, false), needed(n, false), in_backward(n, false);
    for (const std::string& name : output_names(graph))
      seeded[static_cast<size_t>(joint.find_input("d_" + name))] = true;
    for (size_t i = graph.outputs().size(); i < joint.outputs().size(); ++i)
      in_backward[static_cast<size_t>(joint.outputs()[i].node)] = true;
    for (size_t id = n; id-- > 0;)
      for (NodeId operand : joint.nodes()[id].inputs)
        if (in_backward[id]) in_backward[static_cast<size_t>(operand)] = true;
    std::vector<size_t> candidates;
    for (size_t id = 0; id < n; ++id) {
      for (NodeId operand : joint.nodes()[id].inputs)
        if (seeded[static_cast<size_t>(operand)]) seeded[id] = true;
      if (!in_backward[id]) continue;
      for (NodeId operand : joint.nodes()[id].inputs)
        if (seeded[id]) needed[static_cast<size_t>(operand)] = true;
    }
    for (size_t id = 0; id < n; ++id)
      if (!seeded[id] && in_backward[id] && !joint.nodes()[id].is_input()) candidates.push_back(id);
    for (size_t i = graph.outputs().size(); i < joint.outputs().size(); ++i)
      needed[static_cast<size_t>(joint.outputs()[i].node)] = true;
    if (candidates.size() > 14) continue;

    int64_t best = FlowNetwork::kUnbounded;
    for (unsigned subset = 0; subset < 1u << candidates.size(); ++subset) {
      std::vector<bool> known(n, false), saved(n, false);
      int64_t bytes = 0;
      for (size_t i = 0; i < candidates.size(); ++i) {
        if ((subset >> i & 1u) == 0) continue;
        saved[candidates[i]] = true;
        bytes += joint.nodes()[candidates[i]].type.bytes();
      }
      bool works = bytes < best;
      for (size_t id = 0; id < n && works; ++id) {
        const Node& node = joint.nodes()[id];
        if (seeded[id]) continue;
        known[id] = saved[id] || node.is_input() || !node.op->traits.contraction;
        for (NodeId operand : node.inputs)
          known[id] = known[id] && (saved[id] || known[static_cast<size_t>(operand)]);
        if (needed[id] && !known[id]) works = false;
      }
      if (works) best = bytes;
    }
    EXPECT_EQ(saved_bytes(split), best) << "seed " << seed << "\n" << print_graph(joint);
    ++compared;
  }
  EXPECT_EQ(compared, 60);
}

TEST(SplitJoint, SavesAViewOrItsSourceButNotBoth) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {4, 6}});
  const Value hidden = ops::matmul(x, b.input("w", {DType::kF32, {6, 6}}));
  const Value view = ops::transpose(ops::reshape(hidden, {4, 2, 3}), {1, 0, 2});
  b.output("y", ops::mul(view, ops::exp(view)));
  b.output("z", ops::mul(hidden, hidden));
  const Graph joint = vjp(std::move(b).build(), {"y", "z"}, {"x"}).take();
  const ForwardBackward split = split_joint(joint, 2, Recompute::kNone);
  EXPECT_EQ(split.saved, std::vector<std::string>{"saved0"});
  EXPECT_EQ(saved_bytes(split), 4 * 6 * 4);
}

// exp(v) is as large as v, and backward needs it too; v alone suffices, but of two cuts of equal
// size the one that saves work wins.
TEST(SplitJoint, OfEqualCutsTakesTheOneNearestToTheBackward) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {4, 6}});
  const Value hidden = ops::matmul(x, b.input("w", {DType::kF32, {6, 6}}));
  const Value y = ops::exp(ops::exp(ops::neg(hidden)));
  b.output("y", ops::sigmoid(y));
  const Graph joint = vjp(std::move(b).build(), {"y"}, {"x"}).take();
  const ForwardBackward split = split_joint(joint, 1, Recompute::kNone);
  ASSERT_EQ(split.saved.size(), 1u);
  const NodeId saved = split.forward.find_output("saved0");
  // exp(neg(hidden)): the inner exp, from which the outer one and the sigmoid follow.
  const Node& node = split.forward.node(saved);
  ASSERT_EQ(node.op->name, "exp");
  EXPECT_EQ(split.forward.node(node.inputs[0]).op->name, "neg");
}

// sigmoid'(v) and sigmoid(v) are of equal size; only the second is a value of the forward.
TEST(SplitJoint, OfEqualCutsTakesValuesThatTheForwardComputesAnyway) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {4, 6}});
  b.output("y", ops::sigmoid(ops::matmul(x, b.input("w", {DType::kF32, {6, 6}}))));
  const Graph forward = std::move(b).build();
  const Graph joint = vjp(forward, {"y"}, {"x"}).take();
  const ForwardBackward split = split_joint(joint, 1, Recompute::kNone);
  ASSERT_EQ(split.saved.size(), 1u);
  EXPECT_EQ(split.forward.nodes().size(), forward.nodes().size());
  EXPECT_EQ(split.forward.find_output("saved0"), split.forward.find_output("y"));
}

// A graph that vjp() would not make: what backward gives out depends on no seed.
TEST(SplitJoint, KeepsAContractionThatBackwardOnlyHandsOn) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {4, 6}});
  const Value product = ops::matmul(x, b.input("w", {DType::kF32, {6, 6}}));
  b.output("y", ops::exp(product));
  b.output("d_x", ops::neg(product));
  const ForwardBackward split = split_joint(std::move(b).build(), 1, Recompute::kNone);
  EXPECT_EQ(split.saved.size(), 1u);
  EXPECT_EQ(split.backward.num_contractions(), 0);
}

TEST(SplitJoint, NamesInputsAndOutputs) {
  const LayerSizes sizes;
  const Graph forward = llama_layer(sizes);
  const Graph joint = vjp(forward, {"y"}, trained_inputs(sizes)).take();
  const ForwardBackward split = split_joint(joint, 1, Recompute::kNone);
  EXPECT_EQ(split.forward.name(), "layer_fwd");
  EXPECT_EQ(split.backward.name(), "layer_bwd");
  EXPECT_EQ(input_names(split.forward), input_names(forward));
  std::vector<std::string> expected = {"y"};
  expected.insert(expected.end(), split.saved.begin(), split.saved.end());
  EXPECT_EQ(output_names(split.forward), expected);
  EXPECT_EQ(output_names(split.backward),
            (std::vector<std::string>{"d_x", "d_q.A", "d_q.B", "d_v.A", "d_v.B"}));
  const ForwardBackward again = split_joint(joint, 1, Recompute::kLayer);
  EXPECT_TRUE(again.saved.empty());
  EXPECT_EQ(output_names(again.forward), std::vector<std::string>{"y"});
  for (const char* unused : {"down.A", "saved0", "y"})
    EXPECT_LT(again.backward.find_input(unused), 0);
}

struct LayerCase {
  std::vector<std::string> targets;
  DType dtype;
  size_t max_saved;
  double max_activations;  // bytes saved, in units of one [S, hidden] activation
};

// Figures of SmolLM2-135M, S = 512. Saved are: q, k, v (or their roped form), one tensor of the
// attention's [heads, S, S] chain, the residual after attention, gate, up, and x·Aᵀ per target;
// with adapters on o and down their inputs follow from these.
TEST(SplitJoint, KeepsFewTensorsOfALlamaLayer) {
  const std::vector<std::string> all = {"q", "k", "v", "o", "gate", "up", "down"};
  // [heads, S, S] is 8 activations of [S, hidden]; in bf16, softmax runs in f32 from bf16 scores.
  const LayerCase cases[] = {{{"q", "v"}, DType::kF32, 9, 17.1},
                             {all, DType::kF32, 15, 18.4},
                             {{"q", "v"}, DType::kBF16, 9, 17.1}};
  for (const LayerCase& c : cases) {
    LayerSizes sizes = smollm2_sizes();
    sizes.targets = c.targets;
    sizes.dtype = c.dtype;
    const Graph forward = llama_layer(sizes);
    const Graph joint =
        run_passes(vjp(forward, {"y"}, trained_inputs(sizes)).take(), default_passes());
    const ForwardBackward split = split_joint(joint, 1, Recompute::kNone);
    EXPECT_EQ(contractions_without_seed(split.backward, {"y"}), 0);
    EXPECT_EQ(split.forward.num_contractions(), forward.num_contractions());
    EXPECT_EQ(split.forward.num_contractions() + split.backward.num_contractions(),
              joint.num_contractions());
    EXPECT_LE(split.saved.size(), c.max_saved);
    const double activation =
        static_cast<double>(TensorType{c.dtype, {sizes.seq_len, sizes.hidden}}.bytes());
    const double activations = static_cast<double>(saved_bytes(split)) / activation;
    EXPECT_LE(activations, c.max_activations);
    std::cout << c.targets.size() << " targets, " << dtype_name(c.dtype) << ": "
              << split.saved.size() << " saved, " << saved_bytes(split) << " bytes, " << activations
              << " activations\n";
    for (const std::string& name : split.saved)
      std::cout << "  " << print_node(split.forward, split.forward.find_output(name)) << "\n";
  }
}

TEST(SplitJoint, GivesTheGradientsOfALlamaLayer) {
  LayerSizes sizes;
  sizes.targets = {"q", "k", "v", "o", "gate", "up", "down"};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    sizes.dtype = dtype;
    const Graph joint = vjp(llama_layer(sizes), {"y"}, trained_inputs(sizes)).take();
    for (const Graph& graph : {joint, run_passes(joint, default_passes())}) {
      check_split(graph, 1, Recompute::kNone, 5);
      check_split(graph, 1, Recompute::kLayer, 5);
    }
  }
}

}  // namespace
}  // namespace npu
