// Cutting: limits hold, few bytes cross, and the parts in order are the graph.
#include <gtest/gtest.h>

#include <set>

#include "ir/text.h"
#include "ir/verify.h"
#include "llama_layer.h"
#include "ops/ops.h"
#include "random_graph.h"
#include "transform/partition.h"
#include "transform/passes.h"
#include "transform/vjp.h"

namespace npu {
namespace {

std::vector<Graph> graphs_of(const std::vector<Part>& parts) {
  std::vector<Graph> graphs;
  for (const Part& part : parts) graphs.push_back(part.graph);
  return graphs;
}

int64_t num_ops(const Graph& graph) {
  return static_cast<int64_t>(graph.nodes().size() - graph.inputs().size());
}

bool within(const Graph& part, const PartLimits& limits) {
  const auto fits = [](int64_t count, int64_t limit) { return limit == 0 || count <= limit; };
  return fits(part.num_contractions(), limits.contractions) && fits(num_ops(part), limits.nodes) &&
         fits(static_cast<int64_t>(part.inputs().size()), limits.inputs) &&
         fits(static_cast<int64_t>(part.outputs().size()), limits.outputs);
}

// Bytes that parts write for others and read from others, counted from the parts themselves.
int64_t crossing_bytes(const Graph& whole, const std::vector<Part>& parts) {
  int64_t bytes = 0;
  std::set<std::string> read;
  for (const Part& part : parts) {
    for (NodeId id : part.graph.inputs()) {
      const Node& input = part.graph.node(id);
      if (whole.find_input(input.name) >= 0) continue;
      bytes += input.type.bytes();
      read.insert(input.name);
    }
  }
  for (const Part& part : parts) {
    for (const GraphOutput& output : part.graph.outputs())
      if (read.contains(output.name)) bytes += part.graph.node(output.node).type.bytes();
  }
  return bytes;
}

PartLimits random_limits(uint64_t seed) {
  Dice dice(seed, "limits");
  const auto limit = [&](size_t least, size_t most) {
    return dice.chance(0.6) ? static_cast<int64_t>(least + dice.roll(most - least + 1)) : 0;
  };
  // No op of the table but concat needs more than 3 inputs; a part of one node has few outputs.
  return {limit(1, 3), limit(4, 9), limit(4, 7), limit(4, 6)};
}

TEST(Partition, PartsOfRandomGraphsGiveTheSameBits) {
  int cut = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Graph graph = random_graph(seed, RandomOps::kAll);
    const PartLimits limits = random_limits(seed);
    const Result<PartLabels> labels = partition(graph, limits);
    ASSERT_TRUE(labels.ok()) << labels.error().text();
    const std::vector<Part> parts = split(graph, labels.value());
    ASSERT_EQ(parts.size(), static_cast<size_t>(labels.value().count));
    for (const Part& part : parts) {
      EXPECT_FALSE(verify(part.graph));
      EXPECT_TRUE(within(part.graph, limits)) << print_graph(part.graph);
    }
    if (parts.size() > 1) ++cut;
    const NamedTensors inputs = random_inputs(graph, seed);
    NamedTensors results = run_parts(graphs_of(parts), inputs);
    const NamedTensors expected = run_graph(graph, inputs);
    std::erase_if(results, [&](const auto& item) { return !expected.contains(item.first); });
    EXPECT_EQ(results.size(), expected.size());
    ASSERT_EQ(bit_difference(results, expected), "") << print_graph(graph);
  }
  EXPECT_GT(cut, 800);
}

// All ways to cut the order of ids in contiguous parts; partition() may only be better.
TEST(Partition, MovesNoMoreBytesThanAnyCutOfTheOriginalOrder) {
  int compared = 0;
  for (uint64_t seed = 0; seed < 1000 && compared < 120; ++seed) {
    const Graph graph = random_graph(seed, RandomOps::kAll);
    std::vector<size_t> order;
    for (size_t id = 0; id < graph.nodes().size(); ++id)
      if (!graph.nodes()[id].inputs.empty()) order.push_back(id);
    bool repeated_output = false;  // a constant that is an output takes a place in the order
    for (const GraphOutput& output : graph.outputs()) {
      const Node& node = graph.node(output.node);
      repeated_output = repeated_output || (!node.is_input() && node.inputs.empty());
    }
    if (order.size() > 9 || order.size() < 4 || repeated_output) continue;
    const PartLimits limits = {1, 4, 6, 4};
    const Result<PartLabels> chosen = partition(graph, limits);
    if (!chosen.ok()) continue;
    ++compared;
    int64_t best = INT64_MAX;
    for (unsigned cuts = 0; cuts < 1u << (order.size() - 1); ++cuts) {
      PartLabels labels;
      labels.part.assign(graph.nodes().size(), -1);
      int part = 0;
      for (size_t i = 0; i < order.size(); ++i) {
        if (i > 0 && (cuts >> (i - 1) & 1u) != 0) ++part;
        labels.part[order[i]] = part;
      }
      labels.count = part + 1;
      const std::vector<Part> parts = split(graph, labels);
      bool fit = true;
      for (const Part& p : parts) fit = fit && within(p.graph, limits);
      if (fit) best = std::min(best, crossing_bytes(graph, parts));
    }
    EXPECT_LE(crossing_bytes(graph, split(graph, chosen.value())), best) << "seed " << seed << "\n"
                                                                         << print_graph(graph);
  }
  EXPECT_EQ(compared, 120);
}

TEST(Partition, WithoutLimitsIsOnePart) {
  const Graph graph = llama_layer({});
  const PartLabels labels = partition(graph, {}).take();
  EXPECT_EQ(labels.count, 1);
  EXPECT_EQ(print_graph(canonicalize(split(graph, labels)[0].graph).graph),
            print_graph(canonicalize(graph).graph));
}

TEST(Partition, LabelsRiseAlongEdges) {
  const LayerSizes sizes;
  const Graph graph = vjp(llama_layer(sizes), {"y"}, trained_inputs(sizes)).take();
  const PartLabels labels = partition(graph, {.contractions = 2}).take();
  EXPECT_GE(labels.count, (graph.num_contractions() + 1) / 2);
  for (size_t id = 0; id < graph.nodes().size(); ++id) {
    const Node& node = graph.nodes()[id];
    EXPECT_EQ(labels.part[id] < 0, node.is_input());
    EXPECT_LT(labels.part[id], labels.count);
    for (NodeId operand : node.inputs)
      EXPECT_LE(labels.part[static_cast<size_t>(operand)], labels.part[id]);
  }
}

// Two chains whose nodes alternate: only another order keeps each chain in one part.
TEST(Partition, ReordersNodesTowardsTheirUsers) {
  Builder b("g");
  Value x = b.input("x", {DType::kF32, {8}});
  Value y = b.input("y", {DType::kF32, {8}});
  for (int i = 0; i < 3; ++i) {
    x = ops::exp(x);
    y = ops::sigmoid(y);
  }
  b.output("a", x);
  b.output("b", y);
  const Graph graph = std::move(b).build();
  const PartLabels labels = partition(graph, {.nodes = 3}).take();
  EXPECT_EQ(labels.count, 2);
  EXPECT_EQ(crossing_bytes(graph, split(graph, labels)), 0);
}

TEST(Partition, RepeatsConstantsInsteadOfMovingThem) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {4, 4}});
  const Value half = ops::constant(b, {DType::kF32, {4, 4}}, 0.5);
  const Value first = ops::mul(ops::matmul(x, x), half);
  b.output("y", ops::mul(ops::matmul(first, first), half));
  const Graph graph = std::move(b).build();
  const std::vector<Part> parts = split(graph, partition(graph, {.nodes = 3}).take());
  ASSERT_EQ(parts.size(), 2u);
  for (const Part& part : parts) {
    EXPECT_EQ(num_ops(part.graph), 3);  // constant, matmul, mul
    EXPECT_EQ(part.graph.inputs().size(), 1u);
  }
}

// Halfway, a part of this graph would have three outputs; as a whole it has one.
TEST(Partition, OutputsMayFallAgainAsAPartGrows) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {8}});
  const Value pieces[] = {ops::exp(x), ops::neg(x), ops::sigmoid(x)};
  b.output("y", ops::concat(pieces, 0));
  const PartLabels labels = partition(std::move(b).build(), {.outputs = 1}).take();
  EXPECT_EQ(labels.count, 1);
}

TEST(Partition, NamesTheNodeThatFitsNoPart) {
  Builder b("g");
  std::vector<Value> pieces;
  for (int i = 0; i < 5; ++i) {
    const Value x = b.input(std::string("x").append(std::to_string(i)), {DType::kF32, {2}});
    pieces.push_back(ops::exp(x));
  }
  b.output("y", ops::concat(pieces, 0));
  const Result<PartLabels> labels = partition(std::move(b).build(), {.nodes = 2, .inputs = 4});
  ASSERT_FALSE(labels.ok());
  EXPECT_NE(labels.error().got.find("concat"), std::string::npos) << labels.error().text();
  EXPECT_NE(labels.error().got.find("5 inputs"), std::string::npos) << labels.error().text();
}

TEST(Split, KeepsNamesOfTheWholeGraph) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {2}});
  const Value t0 = b.input("t0", {DType::kF32, {2}});  // takes the first name for crossing values
  const Value sum = ops::add(x, t0);
  const Value hidden = ops::exp(sum);
  b.output("hidden", hidden);
  b.output("again", hidden);
  b.output("x", ops::mul(hidden, sum));  // named like an input
  b.output("passed", x);
  const Graph graph = std::move(b).build();
  const PartLabels labels = {{-1, -1, 0, 0, 1}, 2};
  const std::vector<Part> parts = split(graph, labels);
  EXPECT_EQ(print_graph(parts[0].graph),
            "graph g.0\n"
            "%0 = input \"x\" : f32[2]\n"
            "%1 = input \"t0\" : f32[2]\n"
            "%2 = add(%0, %1) : f32[2]\n"
            "%3 = exp(%2) : f32[2]\n"
            "output \"hidden\" = %3\n"
            "output \"again\" = %3\n"
            "output \"passed\" = %0\n"
            "output \"t1\" = %2\n");
  EXPECT_EQ(print_graph(parts[1].graph),
            "graph g.1\n"
            "%0 = input \"hidden\" : f32[2]\n"
            "%1 = input \"t1\" : f32[2]\n"
            "%2 = mul(%0, %1) : f32[2]\n"
            "output \"x\" = %2\n");
}

TEST(Split, ACrossingOutputNamedLikeAnInputTravelsUnderAnotherName) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {2}});
  const Value next = ops::exp(x);
  b.output("x", next);
  b.output("y", ops::mul(next, x));
  const Graph graph = std::move(b).build();
  const std::vector<Part> parts = split(graph, {{-1, 0, 1}, 2});
  EXPECT_GE(parts[0].graph.find_output("x"), 0);
  EXPECT_GE(parts[0].graph.find_output("t0"), 0);
  EXPECT_GE(parts[1].graph.find_input("x"), 0);
  EXPECT_GE(parts[1].graph.find_input("t0"), 0);
  const NamedTensors inputs = random_inputs(graph, 7);
  NamedTensors results = run_parts(graphs_of(parts), inputs);
  results.erase("t0");
  EXPECT_EQ(bit_difference(results, run_graph(graph, inputs)), "");
}

TEST(Split, RefusesLabelsThatFallAlongAnEdge) {
  Builder b("g");
  b.output("y", ops::neg(ops::exp(b.input("x", {DType::kF32, {2}}))));
  const Graph graph = std::move(b).build();
  EXPECT_THROW(split(graph, {{-1, 1, 0}, 2}), InternalError);
}

TEST(Split, AGraphWithoutNodesIsOnePart) {
  Builder b("g");
  b.output("y", b.input("x", {DType::kF32, {2}}));
  const Graph graph = std::move(b).build();
  const std::vector<Part> parts = split(graph, partition(graph, {.nodes = 1}).take());
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].graph.outputs().size(), 1u);
}

// The same graph with other names, inputs declared in reverse, and nodes in another order.
Graph disguised(const Graph& graph, uint64_t seed) {
  Dice dice(seed, "disguise");
  Builder b("other");
  std::vector<Value> values(graph.nodes().size());
  for (size_t i = graph.inputs().size(); i-- > 0;) {
    const NodeId id = graph.inputs()[i];
    values[static_cast<size_t>(id)] =
        b.input(std::string("renamed_").append(graph.node(id).name), graph.node(id).type);
  }
  for (int i = 0; i < 20; ++i)
    import_node(b, graph, static_cast<NodeId>(dice.roll(graph.nodes().size())), values);
  for (const GraphOutput& output : graph.outputs()) {
    b.output(std::string("renamed_").append(output.name),
             import_node(b, graph, output.node, values));
  }
  return std::move(b).build();
}

TEST(Canonicalize, EqualStructuresPrintEqualText) {
  std::set<std::string> texts;
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Graph graph = random_graph(seed, RandomOps::kAll);
    const CanonicalPart one = canonicalize(graph);
    const CanonicalPart two = canonicalize(disguised(graph, seed));
    ASSERT_EQ(print_graph(one.graph), print_graph(two.graph)) << print_graph(graph);
    texts.insert(print_graph(one.graph));
    // The names lead back: bound by position, the part computes what the graph computes.
    const NamedTensors inputs = random_inputs(graph, seed);
    NamedTensors canonical_inputs;
    for (size_t i = 0; i < one.input_names.size(); ++i)
      canonical_inputs[one.graph.node(one.graph.inputs()[i]).name] = inputs.at(one.input_names[i]);
    NamedTensors results;
    const NamedTensors canonical_results = run_graph(one.graph, canonical_inputs);
    for (size_t i = 0; i < one.output_names.size(); ++i)
      results[one.output_names[i]] = canonical_results.at(one.graph.outputs()[i].name);
    ASSERT_EQ(bit_difference(results, run_graph(graph, inputs)), "");
    EXPECT_EQ(results.size(), graph.outputs().size());
  }
  EXPECT_GT(texts.size(), 490u) << "different graphs print different text";
}

TEST(Canonicalize, NamesInOrderOfFirstUse) {
  Builder b("anything");
  b.input("unused", {DType::kF32, {2}});
  const Value late = b.input("late", {DType::kF32, {2}});
  const Value early = b.input("early", {DType::kF32, {2}});
  const Value value = ops::sub(ops::exp(early), late);
  b.output("first", value);
  b.output("second", value);
  const CanonicalPart part = canonicalize(std::move(b).build());
  EXPECT_EQ(print_graph(part.graph),
            "graph part\n"
            "%0 = input \"i0\" : f32[2]\n"
            "%1 = exp(%0) : f32[2]\n"
            "%2 = input \"i1\" : f32[2]\n"
            "%3 = sub(%1, %2) : f32[2]\n"
            "output \"o0\" = %3\n"
            "output \"o1\" = %3\n");
  EXPECT_EQ(part.input_names, (std::vector<std::string>{"early", "late"}));
  EXPECT_EQ(part.output_names, (std::vector<std::string>{"first", "second"}));
}

// What a vendor that takes two contractions at a time sees of SmolLM2's layer.
TEST(Partition, PartsOfALlamaLayerEqualTheLayer) {
  const LayerSizes sizes;
  const Graph joint =
      run_passes(vjp(llama_layer(sizes), {"y"}, trained_inputs(sizes)).take(), default_passes());
  const ForwardBackward layer = split_joint(joint, 1, Recompute::kLayer);
  for (const Graph& graph : {layer.forward, layer.backward}) {
    for (const int64_t contractions : {1, 2, 5}) {
      const PartLimits limits = {.contractions = contractions};
      const std::vector<Part> parts = split(graph, partition(graph, limits).take());
      EXPECT_GE(static_cast<int64_t>(parts.size()) * contractions, graph.num_contractions());
      for (const Part& part : parts) EXPECT_TRUE(within(part.graph, limits));
      const NamedTensors inputs = random_inputs(graph, 11);
      NamedTensors results = run_parts(graphs_of(parts), inputs);
      const NamedTensors expected = run_graph(graph, inputs);
      std::erase_if(results, [&](const auto& item) { return !expected.contains(item.first); });
      EXPECT_EQ(results.size(), expected.size());
      EXPECT_EQ(bit_difference(results, expected), "");
    }
  }
}

TEST(Partition, IsDeterministic) {
  const Graph graph = llama_layer(smollm2_sizes());
  const PartLabels one = partition(graph, {.contractions = 2}).take();
  const PartLabels two = partition(graph, {.contractions = 2}).take();
  EXPECT_EQ(one.part, two.part);
}

}  // namespace
}  // namespace npu
