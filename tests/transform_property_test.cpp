// The way of a graph to a compiler (passes, legalisation, cut, canonical form) keeps every bit,
// over ten thousand random graphs.
#include <gtest/gtest.h>

#include <set>

#include "ir/text.h"
#include "random_graph.h"
#include "transform/legalise.h"
#include "transform/partition.h"
#include "transform/passes.h"

namespace npu {
namespace {

constexpr uint64_t kGraphs = 10000;

PartLimits random_limits(Dice& dice) {
  const auto limit = [&](size_t least, size_t most) {
    return dice.chance(0.6) ? static_cast<int64_t>(least + dice.roll(most - least + 1)) : 0;
  };
  return {limit(1, 3), limit(4, 9), limit(4, 7), limit(4, 6)};
}

// Vendors drop inputs that nothing reads and merge equal ones: a part must have neither.
void expect_plain_inputs(const CanonicalPart& part) {
  std::set<std::string> names(part.input_names.begin(), part.input_names.end());
  EXPECT_EQ(names.size(), part.input_names.size()) << "an input is given twice";
  std::vector<bool> read(part.graph.nodes().size(), false);
  for (const Node& node : part.graph.nodes()) {
    for (const NodeId in : node.inputs) read[static_cast<size_t>(in)] = true;
  }
  for (const GraphOutput& output : part.graph.outputs()) {
    read[static_cast<size_t>(output.node)] = true;
  }
  for (const NodeId id : part.graph.inputs()) {
    EXPECT_TRUE(read[static_cast<size_t>(id)]) << "an input is read by nothing";
  }
}

// Runs a canonical part on the values that its inputs stand for, and files its results.
void run_part(const CanonicalPart& part, NamedTensors& values) {
  NamedTensors inputs;
  for (size_t i = 0; i < part.input_names.size(); ++i) {
    inputs[part.graph.node(part.graph.inputs()[i]).name] = values.at(part.input_names[i]);
  }
  const NamedTensors results = run_graph(part.graph, inputs);
  for (size_t i = 0; i < part.output_names.size(); ++i) {
    values[part.output_names[i]] = results.at(part.graph.outputs()[i].name);
  }
}

TEST(Property, TheWayToACompilerKeepsEveryBit) {
  int legalised = 0, cut = 0;
  PassOptions exact;
  exact.disabled = {"algebra"};
  exact.fired = [&](const Rule& rule) { EXPECT_TRUE(rule.exact) << rule.name; };
  for (uint64_t seed = 0; seed < kGraphs; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Graph graph = random_graph(seed, RandomOps::kAll);
    const Graph simple = run_passes(graph, default_passes(), exact);
    const Graph legal = run_passes(simple, legalise_passes(), exact);
    legalised += print_graph(simple) != print_graph(legal);
    Dice dice(seed, "limits");
    Result<PartLabels> labels = partition(legal, random_limits(dice));
    if (!labels) labels = partition(legal, {});  // a node that fits no part: as in make_plan
    const std::vector<Part> parts = split(legal, labels.value());
    cut += parts.size() > 1;
    const NamedTensors inputs = random_inputs(graph, seed, /*special=*/seed % 2 == 1);
    NamedTensors values = inputs;
    for (const Part& part : parts) {
      const CanonicalPart canonical = canonicalize(part.graph);
      expect_plain_inputs(canonical);
      run_part(canonical, values);
    }
    const NamedTensors expected = run_graph(graph, inputs);
    std::erase_if(values, [&](const auto& item) { return !expected.contains(item.first); });
    ASSERT_EQ(bit_difference(values, expected), "") << print_graph(graph);
  }
  EXPECT_GT(legalised, 1000);
  EXPECT_GT(cut, 3000);
}

}  // namespace
}  // namespace npu
