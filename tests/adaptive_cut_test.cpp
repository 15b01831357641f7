// Parts that fail are cut until what is left runs: the cut is right, small, remembered and bounded.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "base/log.h"
#include "compile/adaptive_cut.h"
#include "compile_fakes.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "ops/ops.h"
#include "random_graph.h"

namespace npu {
namespace {

using namespace testing_fakes;
using Kind = CompileOutcome::Kind;

int64_t num_ops(const Graph& graph) {
  return static_cast<int64_t>(graph.nodes().size() - graph.inputs().size());
}

bool has_op(const Graph& graph, std::string_view op) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [&](const Node& n) { return !n.is_input() && n.op->name == op; });
}

// The parts of a planned graph one after the other, by the reference kernels.
NamedTensors run_planned(const Plan& plan, const PlannedGraph& graph, NamedTensors values) {
  for (const PlannedPart& part : graph.parts) {
    const Graph& content = plan.distinct[part.distinct].graph;
    NamedTensors inputs;
    for (size_t i = 0; i < part.input_names.size(); ++i) {
      inputs[content.node(content.inputs()[i]).name] = values.at(part.input_names[i]);
    }
    const NamedTensors results = npu::run_graph(content, inputs);
    for (size_t i = 0; i < part.output_names.size(); ++i) {
      const bool is_new =
          values.emplace(part.output_names[i], results.at(content.outputs()[i].name)).second;
      EXPECT_TRUE(is_new) << part.output_names[i] << " is written twice";
    }
  }
  NamedTensors outputs;
  for (const GraphOutput& output : graph.graph.outputs()) {
    outputs[output.name] = values.at(output.name);
  }
  return outputs;
}

std::string cut_text(const Plan& plan) {
  std::string text;
  for (const PlannedGraph& graph : plan.graphs) {
    for (const PlannedPart& part : graph.parts) {
      text += part.name + (part.on_host ? " host " : " device ") + part.host_reason + "; " +
              part.cut_reason + "\n" + plan.distinct[part.distinct].text;
    }
  }
  return text;
}

// What a compiler may dislike: an op, two ops together, or more than a few nodes.
std::function<bool(const Graph&)> random_dislike(const Graph& graph, Dice& dice) {
  std::vector<std::string> ops;
  for (const Node& node : graph.nodes()) {
    if (!node.is_input()) ops.emplace_back(node.op->name);
  }
  if (ops.empty()) ops.emplace_back("exp");
  const std::string a = dice.pick(ops), b = dice.pick(ops);
  const auto most = static_cast<int64_t>(1 + dice.roll(8));
  switch (dice.roll(3)) {
    case 0:
      return [a](const Graph& part) { return has_op(part, a); };
    case 1:
      return [a, b](const Graph& part) { return has_op(part, a) && has_op(part, b); };
    default:
      return [most](const Graph& part) { return num_ops(part) > most; };
  }
}

Plan cut_in_random_order(const Graph& graph, FakeBackend& backend, const PlanOptions& options,
                         const std::function<bool(const Graph&)>& dislikes, Dice& dice) {
  Plan plan = make_plan({{"fwd", graph}}, backend, options);
  AdaptiveCut cut(plan, backend, {}, true);
  for (auto open = cut.open(); !open.empty(); open = cut.open()) {
    const size_t part = dice.pick(open);
    if (dislikes(plan.distinct[part].graph)) {
      cut.failed(part, "rejected: disliked", true);
    } else {
      cut.built(part);
    }
  }
  CompileReport report;
  cut.apply(report);
  return plan;
}

TEST(AdaptiveCut, RandomGraphsKeepEveryBitInAnyOrder) {
  set_log_level(LogLevel::kError);
  FakeBackend backend({});
  int cut = 0, on_host = 0;
  for (uint64_t seed = 0; seed < 10000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Dice dice(seed, "adaptive cut");
    const Graph graph = random_graph(seed, RandomOps::kAll);
    const auto dislikes = random_dislike(graph, dice);
    PlanOptions options;
    if (dice.chance(0.3)) options.limits = {2, 12, 6, 6};
    const Plan plan = cut_in_random_order(graph, backend, options, dislikes, dice);
    ASSERT_EQ(cut_text(plan),
              cut_text(cut_in_random_order(graph, backend, options, dislikes, dice)));
    const PlannedGraph& planned = plan.graphs[0];
    if (!planned.host_reason.empty()) continue;  // could not be cut to the limits
    for (const PlannedPart& part : planned.parts) {
      const Graph& content = plan.distinct[part.distinct].graph;
      ASSERT_EQ(part.on_host, dislikes(content)) << part.name;
      ASSERT_FALSE(verify(content));
      on_host += part.on_host;
      cut += !part.cut_reason.empty();
    }
    const NamedTensors inputs = random_inputs(graph, seed);
    ASSERT_EQ(
        bit_difference(run_planned(plan, planned, inputs), npu::run_graph(planned.graph, inputs)),
        "")
        << cut_text(plan);
  }
  set_log_level(LogLevel::kInfo);
  EXPECT_GT(cut, 10000);
  EXPECT_GT(on_host, 1000);
}

TEST(CutInTwo, HalvesContractionsThenNodes) {
  const Graph whole = canonicalize(blocks_graph()).graph;
  const auto halves = cut_in_two(whole, {});
  ASSERT_GE(halves.size(), 2u);
  for (const CanonicalPart& half : halves) EXPECT_LE(half.graph.num_contractions(), 3);
  // Down to single nodes and no further.
  std::vector<Graph> queue = {whole};
  int64_t units = 0;
  while (!queue.empty()) {
    const Graph part = queue.back();
    queue.pop_back();
    const auto pieces = cut_in_two(part, {});
    if (pieces.empty()) {
      ++units;
      int64_t placed = 0;
      for (const Node& node : part.nodes()) placed += !node.inputs.empty();
      EXPECT_EQ(placed, 1) << print_graph(part);
    }
    for (const CanonicalPart& piece : pieces) {
      EXPECT_LT(num_ops(piece.graph), num_ops(part));
      queue.push_back(piece.graph);
    }
  }
  EXPECT_GT(units, 15);
}

TEST(CutInTwo, KeepsToLimits) {
  const Graph whole = canonicalize(blocks_graph()).graph;
  for (const CanonicalPart& half : cut_in_two(whole, {0, 0, 4, 2})) {
    EXPECT_LE(half.input_names.size(), 4u);
    EXPECT_LE(half.output_names.size(), 2u);
  }
  EXPECT_TRUE(cut_in_two(whole, {0, 0, 1, 0}).empty());  // no matmul has one input
}

// ---- with compilers ----------------------------------------------------------------------------

// Two graphs that share their only part, whole, on a fake; and a log of what was compiled.
struct Fixture {
  explicit Fixture(FakeOptions options = {}) : backend(std::move(options)) {
    settings.cache_dir = dir.path() / "cache";
    settings.worker = worker_argv();
    settings.jobs = 2;
    settings.seconds_limit = 60;
    setenv("NPU_FAKE_LOG", (dir.path() / "log").c_str(), 1);
  }
  ~Fixture() { unsetenv("NPU_FAKE_LOG"); }

  CompileReport compile() {
    plan = make_plan(graphs, backend, plan_options);
    return compile_plan(plan, backend, {}, settings);
  }
  CompileReport recall() {
    plan = make_plan(graphs, backend, plan_options);
    return recall_plan(plan, backend, {}, settings);
  }
  size_t compiles() const {
    std::ifstream log(dir.path() / "log");
    return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(log), {}, '\n'));
  }
  std::vector<const PlannedPart*> host_parts(const std::string& graph) const {
    std::vector<const PlannedPart*> parts;
    for (const PlannedPart& part : plan.graph(graph).parts) {
      if (part.on_host) parts.push_back(&part);
    }
    return parts;
  }
  void expect_right_results() {
    auto runtime = Runtime::create(plan, backend, {}).take();
    FakeBackend whole({});
    auto reference = make_runtime({{"fwd", blocks_graph()}}, whole, cut_to(0));
    EXPECT_LT(difference(testing_fakes::run_graph(*runtime, "a")["y"],
                         testing_fakes::run_graph(*reference, "blocks")["y"])
                  .rel_l2,
              1e-5);
  }

  TempDir dir;
  std::vector<NamedGraph> graphs = {{"fwd", blocks_graph("a")}, {"bwd", blocks_graph("b")}};
  FakeBackend backend;
  PlanOptions plan_options;
  CompileSettings settings;
  Plan plan;
};

struct Misbehaviour {
  std::string mode, reason;
};

class Misbehaving : public testing::TestWithParam<Misbehaviour> {};
INSTANTIATE_TEST_SUITE_P(Compilers, Misbehaving,
                         testing::Values(Misbehaviour{"reject", "rejected: exp: is not accepted"},
                                         Misbehaviour{"crash", "crashed: killed by SIGSEGV"},
                                         Misbehaviour{"throw", "crashed: exited with 1"},
                                         Misbehaviour{"hang", "timed out: timed out after"},
                                         Misbehaviour{"memory", "out of memory: out of memory at"}),
                         [](const auto& bad) { return bad.param.mode; });

TEST_P(Misbehaving, OnlyTheNodeThatFailsGoesToTheHost) {
  FakeOptions fake;
  fake.mode = GetParam().mode;
  Fixture f(fake);
  if (fake.mode == "hang") f.settings.seconds_limit = 1.5;  // a sanitized child starts slowly
  if (fake.mode == "memory") f.settings.memory_limit_bytes = int64_t{256} << 20;
  const CompileReport cold = f.compile();
  const std::string reason = GetParam().reason;
  for (const char* graph : {"a", "b"}) {
    const auto on_host = f.host_parts(graph);
    ASSERT_EQ(on_host.size(), 1u);
    EXPECT_EQ(num_ops(f.plan.distinct[on_host[0]->distinct].graph), 1);
    EXPECT_EQ(on_host[0]->host_reason.substr(0, reason.size()), reason);
    EXPECT_EQ(on_host[0]->cut_reason.substr(0, reason.size()), reason);
    EXPECT_GT(f.plan.graph(graph).parts.size(), 2u);
  }
  EXPECT_EQ(f.host_parts("a")[0]->distinct, f.host_parts("b")[0]->distinct);
  ASSERT_EQ(cold.failed.size(), 1u);
  EXPECT_EQ(cold.failed[0].part, f.host_parts("a")[0]->name);
  EXPECT_EQ(cold.cuts[0].part, "a.0");
  EXPECT_EQ(f.compiles(), cold.built + cold.cuts.size() + 1);
  EXPECT_LT(f.compiles(), 16u);
  const std::string cut = cut_text(f.plan);

  // Again: straight to the same cut. The child that would compile is not there.
  f.settings.worker = {"/no/such/program"};
  f.settings.expect_cached = true;
  const CompileReport warm = f.compile();
  EXPECT_EQ(warm.built, 0u);
  EXPECT_EQ(warm.cached, cold.built);
  EXPECT_EQ(cut_text(f.plan), cut);
  f.expect_right_results();
  // And so does a plan that only asks the cache.
  const CompileReport recalled = f.recall();
  EXPECT_EQ(cut_text(f.plan), cut);
  EXPECT_EQ(recalled.failed.size(), 1u);
}

// A pattern is a matter of two nodes: cut apart, both run on the device.
TEST(AdaptiveCut, PatternsAreCutApart) {
  FakeOptions fake;
  fake.mode = "pair";
  Fixture f(fake);
  const CompileReport report = f.compile();
  EXPECT_TRUE(report.failed.empty());
  EXPECT_TRUE(f.host_parts("a").empty());
  EXPECT_GT(report.cuts.size(), 0u);
  f.expect_right_results();
}

TEST(AdaptiveCut, UnsupportedNodesAreCutOutWithoutCompilingAroundThem) {
  FakeOptions fake;
  fake.exp_unsupported = true;
  Fixture f(fake);
  const CompileReport report = f.compile();
  const auto on_host = f.host_parts("a");
  ASSERT_EQ(on_host.size(), 1u);
  EXPECT_EQ(on_host[0]->host_reason, "unsupported: exp: no exponentials here");
  EXPECT_EQ(num_ops(f.plan.distinct[on_host[0]->distinct].graph), 1);
  EXPECT_EQ(f.compiles(), report.built);
  EXPECT_TRUE(report.failed.empty());
  f.expect_right_results();
}

TEST(AdaptiveCut, CanBeOff) {
  FakeOptions fake;
  fake.mode = "reject";
  Fixture f(fake);
  f.settings.adaptive_cut = false;
  const CompileReport report = f.compile();
  EXPECT_EQ(f.compiles(), 1u);
  ASSERT_EQ(f.plan.graph("a").parts.size(), 1u);
  EXPECT_TRUE(f.plan.graph("a").parts[0].on_host);
  EXPECT_EQ(report.failed.size(), 1u);
  // The failure is remembered, so turning it on starts from there.
  f.settings.adaptive_cut = true;
  const CompileReport on = f.compile();
  EXPECT_EQ(f.compiles(), 1 + on.built + on.cuts.size());  // less the whole part, and the last exp
}

// A compiler that takes nothing costs a bounded number of attempts, and the graph stays whole.
TEST(AdaptiveCut, HopelessPartsStayWhole) {
  FakeOptions fake;
  fake.in_process = true;
  fake.rejects = [](const Graph&) { return true; };
  Fixture f(fake);
  const CompileReport report = f.compile();
  ASSERT_EQ(f.plan.graph("a").parts.size(), 1u);
  EXPECT_EQ(f.plan.graph("a").parts[0].host_reason,
            "rejected: fake: will not take this; none of its pieces can be compiled either");
  EXPECT_EQ(report.failed.size(), 1u);
  EXPECT_TRUE(report.cuts.empty());
  EXPECT_EQ(report.built, 0u);
}

TEST(AdaptiveCut, CutsOfOnePartAreBounded) {
  Builder b("long");
  Value x = b.input("x", {DType::kF32, {4}});
  for (int i = 0; i < 200; ++i) x = i % 12 == 0 ? ops::exp(x) : ops::add_scalar(x, i);
  b.output("y", x);
  FakeOptions fake;
  fake.in_process = true;
  fake.rejects = [](const Graph& part) { return has_op(part, "exp"); };
  Fixture f(fake);
  f.graphs = {{"fwd", std::move(b).build()}};
  for (int i = 0; i < 2; ++i) {  // the second from the cache
    const CompileReport report = f.compile();
    EXPECT_LE(f.compiles(), 96u);  // a cut makes two pieces, seldom three
    const auto on_host = f.host_parts("long");
    EXPECT_LE(report.cuts.size(), 32u);
    EXPECT_TRUE(std::any_of(on_host.begin(), on_host.end(), [](const PlannedPart* part) {
      return part->host_reason.find("not cut further: long.0 took 32 cuts") != std::string::npos;
    })) << cut_text(f.plan);
  }
}

TEST(AdaptiveCut, BudgetBoundsTheTimeAndTheRestGoesToTheHost) {
  FakeOptions fake;
  fake.mode = "hang";
  Fixture f(fake);
  f.settings.jobs = 1;
  f.settings.seconds_limit = 0.4;
  f.settings.seconds_budget = 0.6;
  const CompileReport report = f.compile();
  EXPECT_LT(report.seconds, 20);
  EXPECT_FALSE(f.host_parts("a").empty());
  bool told = false;
  for (const PlannedPart* part : f.host_parts("a")) {
    told = told ||
           part->host_reason.find("the 0.6 s of --compile-budget were spent") != std::string::npos;
  }
  EXPECT_TRUE(told) << cut_text(f.plan);
  f.expect_right_results();
  // With more time it goes on from what is known; a limit cut short by the budget is tried again.
  f.settings.seconds_budget = 0;
  const size_t before = f.compiles();
  const CompileReport rest = f.compile();
  EXPECT_GT(f.compiles(), before);
  EXPECT_EQ(f.host_parts("a").size(), 1u);
  EXPECT_EQ(rest.failed.size(), 1u);
}

// Killed outright, again and again: nothing that had finished is compiled twice.
TEST(AdaptiveCut, KilledCompileResumes) {
  FakeOptions fake;
  fake.mode = "reject";
  Fixture whole(fake);
  whole.compile();
  const size_t needed = whole.compiles();
  ASSERT_GT(needed, 5u);

  Fixture f(fake);
  f.settings.jobs = 1;
  for (int killed = 0; killed < 20; ++killed) {
    const pid_t pid = fork();
    if (pid == 0) {
      size_t compiled = 0;
      f.settings.progress = [&](size_t, size_t, std::string_view) {
        if (f.compiles() >= 2 + static_cast<size_t>(killed) * 2 && ++compiled > 0) {
          std::raise(SIGKILL);
        }
      };
      f.compile();
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (!WIFSIGNALED(status)) break;
  }
  f.settings.expect_cached = true;
  f.compile();
  EXPECT_EQ(f.compiles(), needed);
  EXPECT_EQ(cut_text(f.plan), cut_text(whole.plan));
}

TEST(AdaptiveCut, PassingTroubleIsNoReasonToCut) {
  FakeOptions fake;
  fake.mode = "lost";
  Fixture f(fake);
  const CompileReport report = f.compile();
  EXPECT_EQ(f.compiles(), 1u);
  EXPECT_EQ(report.failed.size(), 1u);
  EXPECT_TRUE(report.cuts.empty());
}

TEST(AdaptiveCut, AnotherCompilerVersionTriesAgain) {
  FakeOptions fake;
  fake.mode = "reject";
  Fixture f(fake);
  f.compile();
  const size_t first = f.compiles();
  fake.compiler = "fake compiler 2";
  FakeBackend newer(fake);
  Plan plan = make_plan(f.graphs, newer, {});
  compile_plan(plan, newer, {}, f.settings);
  EXPECT_EQ(f.compiles(), 2 * first);
}

TEST(AdaptiveCut, RecallLeavesUnknownPartsOnTheDevice) {
  FakeOptions fake;
  fake.mode = "reject";
  Fixture f(fake);
  f.recall();
  EXPECT_EQ(f.compiles(), 0u);
  ASSERT_EQ(f.plan.graph("a").parts.size(), 1u);
  EXPECT_FALSE(f.plan.graph("a").parts[0].on_host);
  EXPECT_FALSE(f.plan.distinct[0].outcome);
}

TEST(AdaptiveCut, HostGroupsAreLeftAlone) {
  FakeOptions fake;
  fake.mode = "reject";
  Fixture f(fake);
  f.plan_options.host_groups = {"bwd"};
  f.compile();
  ASSERT_EQ(f.plan.graph("b").parts.size(), 1u);
  EXPECT_EQ(f.plan.graph("b").parts[0].host_reason, "--host-parts");
  EXPECT_GT(f.plan.graph("a").parts.size(), 1u);
  f.expect_right_results();
}

TEST(AdaptiveCut, BundlesCarryTheFailuresThatLedToTheCut) {
  FakeOptions fake;
  fake.mode = "crash";
  Fixture f(fake);
  const CompileReport report = f.compile();
  const fs::path file = f.dir.path() / "bundle";
  Cache(f.settings.cache_dir).export_bundle(report.cache_digests, file);
  f.settings.cache_dir = f.dir.path() / "other";
  Cache(f.settings.cache_dir).import_bundle(file);
  f.settings.expect_cached = true;
  EXPECT_EQ(f.compile().cached, report.built);
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  if (const auto code = npu::testing_fakes::run_if_child(argc, argv)) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
