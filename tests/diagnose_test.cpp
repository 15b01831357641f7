// Finding what a compiler fails on, judging single parts, and comparing runs.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compile_fakes.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "ops/table.h"
#include "train/check.h"
#include "train/first_failing.h"
#include "train/part_compare.h"

namespace npu {
namespace {

using testing_fakes::FakeBackend;
using Kind = CompileOutcome::Kind;

CompileOutcome rejected(const std::string& reason) {
  CompileOutcome outcome;
  outcome.reason = reason;
  return outcome;
}

CompileOutcome built() {
  CompileOutcome outcome;
  outcome.kind = Kind::kBuilt;
  return outcome;
}

// A chain of 40 elementwise ops with neg→add in its middle, and values read twice.
Graph chain() {
  Builder b("chain");
  Value x = b.input("x", {DType::kF32, {4, 4}});
  const Value other = b.input("other", {DType::kF32, {4, 4}});
  for (int i = 0; i < 20; ++i) x = i % 2 == 0 ? ops::mul(x, other) : ops::exp(x);
  b.output("early", x);
  const Value negative = ops::neg(x);
  x = ops::add(negative, other);
  for (int i = 0; i < 18; ++i) x = i % 2 == 0 ? ops::mul(x, other) : ops::exp(x);
  b.output("y", x);
  b.output("negative", negative);
  return std::move(b).build();
}

bool has_op(const Graph& graph, std::string_view name) {
  for (const Node& node : graph.nodes()) {
    if (!node.is_input() && node.op->name == name) return true;
  }
  return false;
}

// An add whose operand is a neg.
bool has_neg_add(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (node.is_input() || node.op->name != "add") continue;
    for (const NodeId id : node.inputs) {
      const Node& operand = graph.node(id);
      if (!operand.is_input() && operand.op->name == "neg") return true;
    }
  }
  return false;
}

std::vector<std::string> op_names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Node& node : graph.nodes()) {
    if (!node.is_input()) names.emplace_back(node.op->name);
  }
  return names;
}

TEST(Shrink, FindsThePatternAlone) {
  const auto compile = [](const Graph& graph) {
    EXPECT_TRUE(parse_graph(print_graph(graph), find_op).ok());
    return has_neg_add(graph) ? rejected("can't lower neg into add") : built();
  };
  for (const int jobs : {1, 3}) {
    const Graph graph = chain();
    const ShrunkGraph result = shrink(graph, compile(graph), compile, {200, jobs});
    EXPECT_EQ(op_names(result.graph), (std::vector<std::string>{"neg", "add"}));
    EXPECT_EQ(result.graph.inputs().size(), 2u);
    EXPECT_EQ(result.graph.outputs().size(), 1u) << "the second output is not needed";
    EXPECT_TRUE(result.minimal);
    EXPECT_LT(result.compiles, 40);
  }
}

TEST(Shrink, TakesOutWhatOnlyStandsBetween) {
  // Fails where a matmul lies anywhere behind a neg.
  Builder b("between");
  Value x = ops::neg(b.input("x", {DType::kF32, {4, 4}}));
  for (int i = 0; i < 6; ++i) x = i % 2 == 0 ? ops::mul(x, b.input("w", x.type())) : ops::exp(x);
  b.output("y", ops::exp(ops::matmul(x, x)));
  const Graph graph = std::move(b).build();
  const auto compile = [](const Graph& candidate) {
    std::vector<bool> behind(candidate.nodes().size(), false);
    for (size_t id = 0; id < behind.size(); ++id) {
      const Node& node = candidate.nodes()[id];
      if (node.is_input()) continue;
      behind[id] = node.op->name == "neg";
      for (const NodeId in : node.inputs) {
        if (!behind[static_cast<size_t>(in)]) continue;
        if (node.op->name == "matmul") return rejected("matmul behind neg");
        behind[id] = true;
      }
    }
    return built();
  };
  const ShrunkGraph result = shrink(graph, compile(graph), compile, {});
  EXPECT_EQ(op_names(result.graph), (std::vector<std::string>{"neg", "matmul"}));
  EXPECT_TRUE(result.minimal);
}

TEST(Shrink, KeepsAnOutputThatMatters) {
  // Fails only where a value is read and also an output.
  const auto compile = [](const Graph& graph) {
    for (const GraphOutput& output : graph.outputs()) {
      for (const Node& node : graph.nodes()) {
        for (const NodeId id : node.inputs) {
          if (id == output.node && graph.node(id).op->name == "neg") return rejected("aliased");
        }
      }
    }
    return built();
  };
  const Graph graph = chain();
  const ShrunkGraph result = shrink(graph, compile(graph), compile, {});
  EXPECT_EQ(op_names(result.graph), (std::vector<std::string>{"neg", "add"}));
  EXPECT_EQ(result.graph.outputs().size(), 2u);
}

TEST(Shrink, DoesNotFollowAnotherFailure) {
  // Small graphs are refused too, for another reason: they are not what is looked for.
  const auto compile = [](const Graph& graph) {
    if (graph.nodes().size() < 6) return rejected("needs at least one contraction");
    return has_op(graph, "neg") ? rejected("neg is not known (node 17)") : built();
  };
  const Graph graph = chain();
  const ShrunkGraph result = shrink(graph, compile(graph), compile, {});
  EXPECT_TRUE(has_op(result.graph, "neg"));
  EXPECT_TRUE(same_failure(result.outcome, rejected("neg is not known (node 3)")));
}

TEST(Shrink, StopsAtItsBudget) {
  int compiles = 0;
  const auto compile = [&compiles](const Graph& graph) {
    ++compiles;
    return has_neg_add(graph) ? rejected("no") : built();
  };
  const Graph graph = chain();
  const ShrunkGraph result = shrink(graph, rejected("no"), compile, {5, 1});
  EXPECT_EQ(compiles, 5);
  EXPECT_EQ(result.compiles, 5);
  EXPECT_FALSE(result.minimal);
  EXPECT_TRUE(has_neg_add(result.graph)) << "the best so far still fails";
}

TEST(Shrink, ComparesFailuresByTheirWords) {
  EXPECT_TRUE(
      same_failure(rejected("node %3 f32[4,4]: bad add"), rejected("node %9 f16[2]: bad add")));
  EXPECT_FALSE(same_failure(rejected("bad add"), rejected("bad neg")));
  EXPECT_FALSE(same_failure(rejected("bad add"), built()));
  CompileOutcome crash = rejected("bad add");
  crash.kind = Kind::kCrashed;
  EXPECT_FALSE(same_failure(rejected("bad add"), crash));
}

// ---- a backend whose compiler fails on exp, in children ----------------------------------------

struct FailingCase {
  const char* mode;
  Kind kind;
};
void PrintTo(const FailingCase& c, std::ostream* out) { *out << c.mode; }

class FirstFailing : public ::testing::TestWithParam<FailingCase> {};

TEST_P(FirstFailing, NamesTheNode) {
  const TempDir cache;
  testing_fakes::FakeOptions fake;
  fake.mode = GetParam().mode;
  FakeBackend backend(fake);
  CompileSettings settings;
  settings.cache_dir = cache.path();
  settings.worker = testing_fakes::worker_argv();
  settings.seconds_limit = fake.mode == "hang" ? 1 : 60;
  settings.memory_limit_bytes = int64_t{300} << 20;
  const Plan plan =
      make_plan({{"fwd", testing_fakes::blocks_graph()}}, backend, testing_fakes::cut_to(2));
  for (int round = 0; round < 2; ++round) {
    TrialCompiler compiler(backend, {}, settings);
    const auto failing = first_failing_nodes(plan, "", compiler, settings.seconds_limit, {100, 2});
    ASSERT_EQ(failing.size(), 1u);
    EXPECT_EQ(failing[0].op, "exp");
    EXPECT_EQ(failing[0].ops.size(), 1u);
    EXPECT_TRUE(failing[0].smallest.minimal);
    EXPECT_EQ(failing[0].outcome.kind, GetParam().kind);
    EXPECT_EQ(failing[0].smallest.outcome.kind, GetParam().kind);
    EXPECT_GT(failing[0].nodes, 3u);
    EXPECT_FALSE(failing[0].outcome.reason.empty());
    // Everything, the parts that build too, comes from the cache the second time.
    settings.worker = {"/nonexistent/compiler"};
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, FirstFailing,
                         ::testing::Values(FailingCase{"reject", Kind::kRejected},
                                           FailingCase{"crash", Kind::kCrashed},
                                           FailingCase{"exit", Kind::kCrashed},
                                           FailingCase{"hang", Kind::kTimedOut},
                                           FailingCase{"memory", Kind::kOutOfMemory}),
                         [](const auto& mode) { return std::string(mode.param.mode); });

TEST(FirstFailingNode, NamesAnUnsupportedNodeWithoutCompiling) {
  const TempDir cache;
  testing_fakes::FakeOptions fake;
  fake.exp_unsupported = true;
  FakeBackend backend(fake);
  CompileSettings settings;
  settings.cache_dir = cache.path();
  const Plan plan = make_plan({{"fwd", testing_fakes::blocks_graph()}}, backend, {});
  TrialCompiler compiler(backend, {}, settings);
  const auto failing = first_failing_nodes(plan, "blocks.0", compiler, 10, {});
  ASSERT_EQ(failing.size(), 1u);
  EXPECT_EQ(failing[0].ops, std::vector<std::string>{"exp"});
  EXPECT_THROW(first_failing_nodes(plan, "blocks.7", compiler, 10, {}), UserError);
}

// A cache that can't be written costs time, not the answer.
TEST(FirstFailingNode, GoesOnWithoutACache) {
  const TempDir folder;
  publish_text(folder.path() / "file", "not a directory");
  testing_fakes::FakeOptions fake;
  fake.in_process = true;
  fake.rejects = [](const Graph& graph) { return has_op(graph, "exp"); };
  FakeBackend backend(fake);
  CompileSettings settings;
  settings.cache_dir = folder.path() / "file";
  const Plan plan =
      make_plan({{"fwd", testing_fakes::blocks_graph()}}, backend, testing_fakes::cut_to(2));
  TrialCompiler compiler(backend, {}, settings);
  const auto failing = first_failing_nodes(plan, "", compiler, 10, {100, 2});
  ASSERT_EQ(failing.size(), 1u);
  EXPECT_EQ(failing[0].op, "exp");
}

// What hung under a limit may be built without one (0), and a limit says nothing about memory.
TEST(StillHolds, UnderLimitsThatAreNoWider) {
  CompileOutcome outcome;
  outcome.kind = Kind::kTimedOut;
  outcome.seconds_limit = 10;
  CompileSettings settings;
  for (const auto& [limit, holds] :
       std::map<double, bool>{{0, false}, {5, true}, {10, true}, {11, false}}) {
    settings.seconds_limit = limit;
    EXPECT_EQ(still_holds(outcome, settings), holds) << limit;
  }
  outcome.seconds_limit = 0;
  EXPECT_TRUE(still_holds(outcome, settings));
  outcome.kind = Kind::kOutOfMemory;
  outcome.memory_limit_bytes = 100;
  settings.memory_limit_bytes = 0;
  EXPECT_FALSE(still_holds(outcome, settings));
  settings.memory_limit_bytes = 50;
  EXPECT_TRUE(still_holds(outcome, settings));
}

// A verdict of "timed out" is asked again where there is no limit any more.
TEST(FirstFailingNode, ATimeOutDoesNotOutliveItsLimit) {
  const TempDir cache;
  testing_fakes::FakeOptions fake;
  fake.mode = "hang";
  FakeBackend hanging(fake);
  CompileSettings settings;
  settings.cache_dir = cache.path();
  settings.worker = testing_fakes::worker_argv();
  const Graph graph = testing_fakes::blocks_graph();
  EXPECT_EQ(TrialCompiler(hanging, {}, settings).compile(graph, 0.3).kind, Kind::kTimedOut);
  testing_fakes::FakeOptions gone = fake;  // the same key, no child
  gone.in_process = true;
  gone.rejects = [](const Graph&) { return true; };
  FakeBackend other(gone);
  EXPECT_EQ(TrialCompiler(other, {}, settings).compile(graph, 0.2).kind, Kind::kTimedOut);
  EXPECT_EQ(TrialCompiler(other, {}, settings).compile(graph, 0).kind, Kind::kRejected);
}

// ---- errors of one output ----------------------------------------------------------------------

Tensor ramp(DType dtype, int64_t size, double scale) {
  Tensor tensor(dtype, {size});
  for (int64_t i = 0; i < size; ++i) {
    set_element(tensor, i, scale * std::sin(0.37 * static_cast<double>(i + 1)));
  }
  return tensor;
}

TEST(OutputErrors, MeasureBiasInUlps) {
  const Tensor judged = ramp(DType::kBF16, 1000, 3);
  Tensor outward = judged.clone(), balanced = judged.clone();
  for (int64_t i = 0; i < judged.size(); ++i) {
    uint16_t& away = outward.mutable_values<uint16_t>()[static_cast<size_t>(i)];
    ++away;  // one ulp away from zero, whatever the sign
    uint16_t& either = balanced.mutable_values<uint16_t>()[static_cast<size_t>(i)];
    either = static_cast<uint16_t>(either + (i % 2 == 0 ? 1 : -1));
  }
  const OutputError biased = output_error(outward, judged);
  EXPECT_NEAR(biased.bias, 1, 1e-9);
  EXPECT_NEAR(biased.ulps, 1, 1e-9);
  EXPECT_EQ(biased.differing, 1000);
  EXPECT_EQ(verdict_of(biased, 0.016), PartVerdict::kBiased);
  const OutputError fair = output_error(balanced, judged);
  EXPECT_NEAR(fair.bias, 0, 0.1);
  EXPECT_EQ(verdict_of(fair, 0.016), PartVerdict::kPass);
  EXPECT_EQ(verdict_of(fair, 1e-4), PartVerdict::kError);
}

TEST(OutputErrors, CountWhatIsNotANumberAndWhatWasFlushed) {
  Tensor judged = ramp(DType::kF16, 100, 1), result = judged.clone();
  set_element(result, 3, std::numeric_limits<double>::quiet_NaN());
  set_element(result, 4, -std::numeric_limits<double>::infinity());
  set_element(judged, 5, 1e-6);  // subnormal in f16
  set_element(result, 5, 0);
  const OutputError e = output_error(result, judged);
  EXPECT_EQ(e.nan, 1);
  EXPECT_EQ(e.inf, 1);
  EXPECT_EQ(e.flushed, 1);
  EXPECT_LT(e.rel, 1e-5) << "the others are equal";
  EXPECT_EQ(verdict_of(e, 1), PartVerdict::kNotFinite);
}

TEST(OutputErrors, ZeroAgainstSomethingIsAnError) {
  const Tensor zero(DType::kF32, {8});
  EXPECT_EQ(verdict_of(output_error(ramp(DType::kF32, 8, 1), zero), 0.1), PartVerdict::kError);
  EXPECT_EQ(verdict_of(output_error(zero, zero), 0.1), PartVerdict::kPass);
}

TEST(PartComparer, JudgesEveryPartOfTheDevice) {
  for (const bool hidden : {false, true}) {
    testing_fakes::FakeOptions fake;
    fake.inner = "cpu";
    fake.in_process = true;
    fake.hidden_memory = hidden;
    FakeBackend backend(fake);
    const auto runtime = testing_fakes::make_runtime({{"fwd", testing_fakes::blocks_graph()}},
                                                     backend, testing_fakes::cut_to(2));
    PartComparer comparer(runtime->plan(), runtime->device(), "cpu:reference", DType::kF32,
                          std::nullopt, 1);
    runtime->set_probe([&](const Runtime::PartCall& call) { comparer.compare(call); });
    testing_fakes::run_graph(*runtime, "blocks");
    const auto results = comparer.results();
    ASSERT_EQ(results.size(), runtime->plan().distinct.size());
    for (const PartError& part : results) {
      EXPECT_EQ(part.verdict, PartVerdict::kPass) << part.part;
      EXPECT_GE(part.calls, 1);
      EXPECT_LT(part.worst().rel, 2e-4) << part.part;
    }
  }
}

// ---- runs --------------------------------------------------------------------------------------

RunResult run_of(double loss, std::vector<float> a, std::vector<float> b) {
  RunResult run;
  run.loss = loss;
  run.parameters.push_back(make_parameter("a", Tensor(DType::kF32, {2})));
  run.parameters.push_back(make_parameter("b", Tensor(DType::kF32, {2})));
  run.parameters[0].grad = Tensor::from_f32({2}, a);
  run.parameters[1].grad = Tensor::from_f32({2}, b);
  return run;
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(CheckRuns, NamesAGradientThatIsNotFinite) {
  const RunResult good = run_of(2, {1, 2}, {3, 4});
  const Comparison c = compare_runs(run_of(2, {1, 2}, {3, kNan}), good);
  EXPECT_FALSE(c.pass({}));
  EXPECT_EQ(c.not_finite, std::vector<std::string>{"b"});
  EXPECT_EQ(c.grads[0].name, "b");
  EXPECT_FALSE(std::isfinite(c.worst_grad_rel));
  // A reference that is not finite fails too, but is not the device's fault.
  const Comparison other = compare_runs(good, run_of(2, {1, 2}, {3, kNan}));
  EXPECT_FALSE(other.pass({}));
  EXPECT_TRUE(other.not_finite.empty());
  EXPECT_EQ(compare_runs(run_of(kNan, {1, 2}, {3, 4}), good).not_finite,
            std::vector<std::string>{"loss"});
}

TEST(CheckRuns, ALossOfZeroIsComparedToo) {
  const RunResult zero = run_of(0, {1, 2}, {3, 4}), one = run_of(1, {1, 2}, {3, 4});
  EXPECT_EQ(compare_runs(zero, zero).loss_rel, 0);
  EXPECT_TRUE(compare_runs(zero, zero).pass({}));
  EXPECT_EQ(compare_runs(one, zero).loss_rel, INFINITY);
  EXPECT_EQ(compare_runs(zero, one).loss_rel, 1);
  EXPECT_EQ(compare_runs(run_of(kNan, {1, 2}, {3, 4}), zero).loss_rel, INFINITY);
  // No figure is NaN, so the worst of several is not lost.
  const std::vector<Comparison> seeds = {compare_runs(zero, zero), compare_runs(one, zero)};
  EXPECT_EQ(worst_of(seeds).loss_rel, INFINITY);
  EXPECT_FALSE(worst_of(seeds).pass({}));
}

TEST(CheckRuns, WorstOfSeveralSeeds) {
  const RunResult good = run_of(2, {1, 0}, {1, 0});
  const std::vector<Comparison> seeds = {compare_runs(run_of(2, {1, 0.01f}, {1, 0.2f}), good),
                                         compare_runs(run_of(2.1, {1, 0.3f}, {1, 0}), good)};
  const Comparison worst = worst_of(seeds);
  EXPECT_NEAR(worst.worst_grad_rel, 0.3, 1e-6);
  EXPECT_EQ(worst.grads[0].name, "a");
  EXPECT_NEAR(worst.grads[1].rel, 0.2, 1e-6);
  EXPECT_NEAR(worst.loss, 2.1, 1e-12);
  EXPECT_NEAR(worst.loss_rel, 0.05, 1e-12);
}

TEST(CheckRuns, BlamesTheGroupThatHelpsMost) {
  const RunResult good = run_of(2, {1, 0}, {1, 0});
  const std::vector<std::string> groups = {"fwd", "bwd", "rms"};
  const auto with_group_on_host = [&](const std::string& group) {
    return compare_runs(run_of(2, {1, group == "bwd" ? 0.01f : 0.2f}, {1, 0}), good);
  };
  const auto blame = blame_groups(groups, with_group_on_host, {});
  ASSERT_EQ(blame.size(), 3u);
  EXPECT_EQ(blame[0].group, "bwd");
  EXPECT_TRUE(blame[0].on_host.pass({}));
  EXPECT_EQ(blame[1].group, "fwd");
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  if (const auto code = npu::testing_fakes::run_if_child(argc, argv)) return *code;
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
