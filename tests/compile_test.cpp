// Plans and compile children, against compilers that misbehave.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>

#include "base/log.h"
#include "base/process.h"
#include "compile/cache.h"
#include "compile/plan.h"
#include "compile/worker.h"
#include "compile_fakes.h"
#include "ir/text.h"
#include "ops/table.h"

namespace npu {
namespace {

using namespace testing_fakes;
using Kind = CompileOutcome::Kind;

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& e) {
    return e.error();
  }
  ADD_FAILURE() << "no UserError was thrown";
  return {};
}

// A plan of the blocks graph on a fake, and a cache for it.
struct Fixture {
  explicit Fixture(FakeOptions options = {}, int64_t contractions = 1)
      : backend(options), plan_options(cut_to(contractions)) {
    settings.cache_dir = cache.path();
    settings.worker = worker_argv();
    settings.jobs = 2;
    settings.seconds_limit = 60;
    settings.adaptive_cut = false;  // adaptive_cut_test.cpp has it on
  }

  CompileReport compile() {
    plan = make_plan({{"fwd", blocks_graph()}}, backend, plan_options);
    return compile_plan(plan, backend, plan_options.compile, settings);
  }
  // The one part whose graph holds an exp.
  const DistinctPart& exp_part() const {
    for (const DistinctPart& part : plan.distinct) {
      if (part.text.find("= exp(") != std::string::npos) return part;
    }
    throw InternalError("no part with exp");
  }
  size_t host_parts() const {
    size_t count = 0;
    for (const PlannedGraph& graph : plan.graphs) {
      for (const PlannedPart& part : graph.parts) count += part.on_host;
    }
    return count;
  }

  TempDir cache;
  FakeBackend backend;
  PlanOptions plan_options;
  CompileSettings settings;
  Plan plan;
};

// ---- plans -------------------------------------------------------------------------------------

TEST(Plan, CutsDedupesAndNamesValues) {
  FakeBackend backend({});
  const Plan plan =
      make_plan({{"fwd", blocks_graph("a")}, {"bwd", blocks_graph("b")}}, backend, cut_to(1));
  const PlannedGraph& a = plan.graph("a");
  EXPECT_EQ(a.group, "fwd");
  EXPECT_EQ(a.parts.size(), 6u);
  EXPECT_LT(plan.distinct.size(), 6u);  // the two blocks share parts, and so do the graphs
  int uses = 0;
  for (const DistinctPart& part : plan.distinct) {
    uses += part.uses;
    EXPECT_EQ(part.graph.num_contractions(), 1);
    EXPECT_EQ(part.text, print_graph(part.graph));
    EXPECT_EQ(part.group, "fwd");
    EXPECT_EQ(part.first_use.substr(0, 2), "a.");
  }
  EXPECT_EQ(uses, 12);
  // Every name that a part reads is an input or was written by a part before it.
  std::set<std::string> known = {"x", "w1", "w2"};
  for (const PlannedPart& part : a.parts) {
    for (const std::string& name : part.input_names) EXPECT_TRUE(known.contains(name)) << name;
    known.insert(part.output_names.begin(), part.output_names.end());
  }
  EXPECT_TRUE(known.contains("y") && known.contains("norm"));
  for (const auto& [name, type] : a.temporaries) EXPECT_TRUE(known.contains(name)) << name;
  EXPECT_EQ(known.size(), 3 + 2 + a.temporaries.size());
  EXPECT_THROW(plan.graph("c"), InternalError);
}

TEST(Plan, HostGroupsStayWhole) {
  FakeBackend backend({});
  PlanOptions options = cut_to(1);
  options.host_groups = {"bwd"};
  const Plan plan =
      make_plan({{"fwd", blocks_graph("a")}, {"bwd", blocks_graph("b")}}, backend, options);
  EXPECT_EQ(plan.graph("b").parts.size(), 1u);
  EXPECT_TRUE(plan.graph("b").parts[0].on_host);
  EXPECT_EQ(plan.graph("b").parts[0].host_reason, "--host-parts");
  for (const PlannedPart& part : plan.graph("a").parts) EXPECT_FALSE(part.on_host);
}

TEST(Plan, UnsupportedPartsGoToTheHost) {
  FakeOptions fake;
  fake.exp_unsupported = true;
  FakeBackend backend(fake);
  const Plan plan = make_plan({{"fwd", blocks_graph()}}, backend, cut_to(1));
  size_t on_host = 0;
  for (const PlannedPart& part : plan.graph("blocks").parts) {
    if (!part.on_host) continue;
    ++on_host;
    EXPECT_EQ(part.host_reason, "unsupported: exp: no exponentials here");
    EXPECT_NE(plan.distinct[part.distinct].text.find("= exp("), std::string::npos);
  }
  EXPECT_EQ(on_host, 1u);
}

TEST(Plan, GraphThatCantBeCutGoesToTheHost) {
  FakeBackend backend({});
  PlanOptions options;
  options.limits.inputs = 1;  // a matmul has two
  const Plan plan = make_plan({{"fwd", blocks_graph()}}, backend, options);
  ASSERT_EQ(plan.graph("blocks").parts.size(), 1u);
  EXPECT_EQ(plan.graph("blocks").parts[0].host_reason.substr(0, 14), "can't be cut: ");
}

// ---- compiling ---------------------------------------------------------------------------------

TEST(CompilePlan, BuildsOnceThenTakesFromCache) {
  Fixture f;
  size_t last = 0;
  f.settings.progress = [&](size_t done, size_t total, std::string_view what) {
    EXPECT_EQ(done, ++last);
    EXPECT_EQ(total, f.plan.distinct.size());
    EXPECT_EQ(what.substr(0, 7), "blocks.");
  };
  const CompileReport cold = f.compile();
  EXPECT_EQ(cold.built, f.plan.distinct.size());
  EXPECT_EQ(cold.cached, 0u);
  EXPECT_TRUE(cold.failed.empty());
  EXPECT_EQ(last, f.plan.distinct.size());
  last = 0;
  f.settings.expect_cached = true;
  const CompileReport warm = f.compile();
  EXPECT_EQ(warm.built, 0u);
  EXPECT_EQ(warm.cached, f.plan.distinct.size());
  EXPECT_EQ(f.host_parts(), 0u);
}

TEST(CompilePlan, InProcessGivesTheSameBlobs) {
  Fixture child, here;
  here.settings.worker.clear();
  child.compile();
  here.compile();
  for (size_t i = 0; i < child.plan.distinct.size(); ++i) {
    EXPECT_EQ(child.plan.distinct[i].outcome->blob, here.plan.distinct[i].outcome->blob);
  }
}

TEST(CompilePlan, RealWorkerCompilesRegisteredBackends) {
  const TempDir cache;
  CompileSettings settings;
  settings.worker = real_worker_argv();
  const std::string text = print_graph(blocks_graph("part"));
  const JobResult good = compile_in_child("cpu:reference", text, {}, settings);
  EXPECT_TRUE(good.outcome.built()) << good.outcome.reason << good.outcome.log_tail;
  EXPECT_EQ(
      good.outcome.blob,
      make_backend("cpu:reference").take()->compile(parse_graph(text, find_op).take(), {}).take());
  const JobResult unknown = compile_in_child("no-such", text, {}, settings);
  EXPECT_EQ(unknown.outcome.kind, Kind::kRejected);
  EXPECT_NE(unknown.outcome.reason.find("no-such"), std::string::npos);
  EXPECT_FALSE(unknown.lasting);
  const JobResult broken = compile_in_child("cpu:reference", "graph part\n%0 = what", {}, settings);
  EXPECT_EQ(broken.outcome.kind, Kind::kRejected);
}

TEST(CompileWorker, RefusesForeignInput) {
  ChildOptions options;
  options.input = "not a job";
  const ChildResult child = run_child(real_worker_argv(), options);
  EXPECT_TRUE(child.ok()) << child.describe();
  EXPECT_NE(child.out.find("holds no compile job"), std::string::npos);
}

struct Misbehaviour {
  std::string mode;
  Kind kind;
  std::string reason;
};

class Misbehaving : public testing::TestWithParam<Misbehaviour> {};
INSTANTIATE_TEST_SUITE_P(
    Compilers, Misbehaving,
    testing::Values(Misbehaviour{"reject", Kind::kRejected, "exp: is not accepted"},
                    Misbehaviour{"crash", Kind::kCrashed, "killed by SIGSEGV"},
                    Misbehaviour{"exit", Kind::kCrashed, "exited with 5"},
                    Misbehaviour{"throw", Kind::kCrashed, "exited with 1"},
                    Misbehaviour{"hang", Kind::kTimedOut, "timed out after"},
                    Misbehaviour{"memory", Kind::kOutOfMemory, "out of memory at"}),
    [](const auto& bad) { return bad.param.mode; });

TEST_P(Misbehaving, PartGoesToTheHostAndIsRemembered) {
  FakeOptions fake;
  fake.mode = GetParam().mode;
  Fixture f(fake);
  if (fake.mode == "hang") f.settings.seconds_limit = 3;
  if (fake.mode == "memory") f.settings.memory_limit_bytes = int64_t{512} << 20;
  const CompileReport cold = f.compile();
  const size_t total = f.plan.distinct.size();
  EXPECT_EQ(cold.built, total - 1);
  ASSERT_EQ(cold.failed.size(), 1u);
  EXPECT_EQ(cold.failed[0].part, f.exp_part().first_use);
  EXPECT_EQ(cold.failed[0].outcome, outcome_name(GetParam().kind));
  const CompileOutcome& outcome = *f.exp_part().outcome;
  EXPECT_EQ(outcome.kind, GetParam().kind);
  EXPECT_EQ(outcome.reason.substr(0, GetParam().reason.size()), GetParam().reason);
  EXPECT_NE(outcome.log_tail.find("compiling exp"), std::string::npos);
  EXPECT_EQ(f.host_parts(), static_cast<size_t>(f.exp_part().uses));

  // Again: nothing is compiled, so it takes no time and no limit.
  f.settings.worker = {"/no/such/program"};
  const CompileReport warm = f.compile();
  EXPECT_EQ(warm.built, 0u);
  EXPECT_EQ(warm.cached, total - 1);
  ASSERT_EQ(warm.failed.size(), 1u);
  EXPECT_EQ(warm.failed[0].outcome, outcome_name(GetParam().kind));
  EXPECT_TRUE(f.exp_part().outcome->from_cache);
  // The rest of the plan still runs, the failed part on the host.
  auto runtime = Runtime::create(f.plan, f.backend, {}).take();
  FakeBackend whole({});
  auto reference = make_runtime({{"fwd", blocks_graph()}}, whole, cut_to(0));
  EXPECT_LT(
      difference(run_graph(*runtime, "blocks")["y"], run_graph(*reference, "blocks")["y"]).rel_l2,
      1e-5);
}

TEST(CompilePlan, WiderLimitsGiveASecondChance) {
  FakeOptions fake;
  fake.mode = "hang";
  Fixture f(fake);
  f.settings.seconds_limit = 0.5;
  f.compile();
  EXPECT_EQ(f.exp_part().outcome->kind, Kind::kTimedOut);
  f.settings.seconds_limit = 0.4;  // narrower: it would only fail again
  f.compile();
  EXPECT_TRUE(f.exp_part().outcome->from_cache);
  f.settings.seconds_limit = 1;
  f.compile();
  EXPECT_FALSE(f.exp_part().outcome->from_cache);
  EXPECT_GE(f.exp_part().outcome->seconds, 1);
}

TEST(CompilePlan, PassingTroubleIsNotRemembered) {
  FakeOptions fake;
  fake.mode = "lost";
  Fixture f(fake);
  EXPECT_EQ(f.compile().failed.size(), 1u);
  EXPECT_EQ(f.compile().failed.size(), 1u);
  EXPECT_FALSE(f.exp_part().outcome->from_cache);
  Fixture g;
  g.settings.worker = {"/no/such/program"};
  const CompileReport none = g.compile();
  EXPECT_EQ(none.failed.size(), g.plan.distinct.size());
  EXPECT_NE(none.failed[0].reason.find("could not be started"), std::string::npos);
  g.settings.worker = worker_argv();
  const CompileReport all = g.compile();
  EXPECT_EQ(all.built, g.plan.distinct.size());
}

TEST(CompilePlan, OutputOfTheCompilerIsNoReply) {
  for (const char* mode : {"noise", "fall"}) {
    FakeOptions fake;
    fake.mode = mode;
    Fixture f(fake);
    const CompileReport report = f.compile();
    EXPECT_EQ(report.built, f.plan.distinct.size()) << mode;
  }
}

TEST(CompilePlan, InterruptedCompileResumes) {
  Fixture f;
  f.settings.jobs = 1;
  f.settings.progress = [](size_t done, size_t, std::string_view) {
    if (done == 2) throw std::runtime_error("interrupted");
  };
  EXPECT_THROW(f.compile(), std::runtime_error);
  f.settings.progress = nullptr;
  const CompileReport rest = f.compile();
  EXPECT_EQ(rest.cached, 2u);
  EXPECT_EQ(rest.built, f.plan.distinct.size() - 2);
}

// Also when the process is killed outright: an entry is there or it isn't.
TEST(CompilePlan, KilledCompileResumes) {
  Fixture f;
  f.settings.jobs = 1;
  const pid_t pid = fork();
  if (pid == 0) {
    f.settings.progress = [](size_t done, size_t, std::string_view) {
      if (done == 2) std::raise(SIGKILL);
    };
    f.compile();
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(f.compile().cached, 2u);
}

TEST(CompilePlan, ExpectCachedNamesWhatChanged) {
  Fixture f;
  f.settings.expect_cached = true;
  Error error = error_of([&] { f.compile(); });
  EXPECT_EQ(error.kind, ErrorKind::kCheckFailed);
  EXPECT_NE(error.got.find("no entry for this part or any like it"), std::string::npos);
  f.settings.expect_cached = false;
  f.plan_options.compile.threads = 1;
  f.plan_options.compile.vendor = {{"tactic", "3"}};
  f.compile();
  f.settings.expect_cached = true;
  EXPECT_EQ(f.compile().failed.size(), 0u);
  f.plan_options.compile.threads = 2;
  error = error_of([&] { f.compile(); });
  EXPECT_NE(error.got.find("blocks.0: threads changed: 2 (was 1)"), std::string::npos) << error.got;
  f.plan_options.compile.vendor = {{"tactic", "4"}};
  error = error_of([&] { f.compile(); });
  EXPECT_NE(error.got.find("threads changed: 2 (was 1); option tactic changed: 4 (was 3)"),
            std::string::npos);
}

// Parts that an option does not reach are hits; the others name it.
TEST(CompilePlan, MissesNameTheOptionOfTheirParts) {
  Fixture f;
  f.settings.origin = {{"max-mm", "1"}, {"rank", "16"}};
  f.compile();
  f.settings.origin[1].second = "8";
  f.settings.expect_cached = true;
  EXPECT_EQ(f.compile().built, 0u);
  f.plan_options.limits.contractions = 2;
  f.settings.origin = {{"max-mm", "2"}, {"rank", "16"}};
  const Error error = error_of([&] { f.compile(); });
  EXPECT_NE(error.got.find("blocks.0: max-mm changed: 2 (was 1)"), std::string::npos) << error.got;
  EXPECT_EQ(error.got.find("part changed"), std::string::npos) << error.got;
}

TEST(CompilePlan, CompilerVersionIsInTheKey) {
  Fixture f;
  f.compile();
  FakeOptions newer;
  newer.compiler = "fake compiler 2";
  FakeBackend other(newer);
  Plan plan = make_plan({{"fwd", blocks_graph()}}, other, f.plan_options);
  f.settings.expect_cached = true;
  const Error error = error_of([&] { compile_plan(plan, other, {}, f.settings); });
  EXPECT_NE(error.got.find("compiler changed: fake compiler 2 (was fake compiler 1)"),
            std::string::npos);
}

TEST(CompilePlan, LogsWhyItCompiles) {
  Fixture f;
  f.plan_options.compile.threads = 1;
  f.compile();
  f.plan_options.compile.threads = 2;
  set_log_channels("cache");
  testing::internal::CaptureStderr();
  f.compile();
  f.compile();
  const std::string text = testing::internal::GetCapturedStderr();
  set_log_channels("");
  EXPECT_NE(text.find("debug cache: miss: blocks.0: threads changed: 2 (was 1)"), std::string::npos)
      << text;
  EXPECT_NE(text.find("debug cache: hit: blocks.0"), std::string::npos);
}

TEST(CompilePlan, RepairsADamagedCache) {
  Fixture f;
  f.compile();
  size_t damaged = 0;
  for (const auto& entry : fs::directory_iterator(f.cache.path() / "parts")) {
    if (entry.path().extension() != ".blob") continue;
    std::ofstream(entry.path(), std::ios::app) << "garbage";
    if (++damaged == 2) break;
  }
  const CompileReport report = f.compile();
  EXPECT_EQ(report.built, 2u);
  EXPECT_EQ(report.cached, f.plan.distinct.size() - 2);
  EXPECT_EQ(f.compile().built, 0u);
}

TEST(Bundle, CarriesAPlanToAnotherCache) {
  FakeOptions fake;
  fake.mode = "reject";  // failures travel too
  Fixture f(fake);
  f.compile();
  std::vector<std::string> digests = {std::string(64, '0')};  // absent, so left out
  for (const DistinctPart& part : f.plan.distinct) digests.push_back(part.cache_digest);
  const TempDir dir;
  const fs::path file = dir.path() / "bundle";
  EXPECT_EQ(Cache(f.settings.cache_dir).export_bundle(digests, file), f.plan.distinct.size());

  f.settings.cache_dir = dir.path() / "other";
  EXPECT_EQ(Cache(f.settings.cache_dir).import_bundle(file), f.plan.distinct.size());
  f.settings.expect_cached = true;
  const CompileReport report = f.compile();
  EXPECT_EQ(report.cached, f.plan.distinct.size() - 1);
  EXPECT_EQ(report.failed.size(), 1u);
}

TEST(CompilePlan, UnwritableCacheIsOnlyAWarning) {
  Fixture f;
  publish_text(f.cache.path() / "file", "x");
  f.settings.cache_dir = f.cache.path() / "file" / "cache";
  testing::internal::CaptureStderr();
  const CompileReport report = f.compile();
  EXPECT_EQ(report.built, f.plan.distinct.size());
  EXPECT_NE(testing::internal::GetCapturedStderr().find("warning cache: not stored"),
            std::string::npos);
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  if (const auto code = npu::testing_fakes::run_if_child(argc, argv)) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
