// Simulated compilers in real children, and simulated devices under the runtime: every planted
// fault ends in the outcome or error that the rest of the program knows.
#include <gtest/gtest.h>

#include <unistd.h>

#include "base/file.h"
#include "compile/plan.h"
#include "compile_fakes.h"
#include "ops/ops.h"
#include "transform/legalise.h"

namespace npu {
namespace {

using namespace testing_fakes;
using Kind = CompileOutcome::Kind;

// y = (x·w) + (-x), and a product behind it where asked: what ATOM's compiler can't take.
Graph neg_add_graph(bool product_behind) {
  Builder b("g");
  const Value x = b.input("x", {DType::kF32, {4, 4}}), w = b.input("w", {DType::kF32, {4, 4}});
  Value y = ops::add(ops::matmul(x, w), ops::neg(x));
  if (product_behind) y = ops::matmul(y, w);
  b.output("y", y);
  return std::move(b).build();
}

// A plan on a simulator, compiled in children.
struct Compiled {
  Compiled(const std::string& backend_name, const Graph& graph, PlanOptions options = {},
           double seconds_limit = 60, int64_t memory_limit = 0, bool adaptive_cut = false)
      : backend(make_backend(backend_name).take()) {
    CompileSettings settings;
    settings.cache_dir = cache.path();
    settings.worker = real_worker_argv();
    settings.seconds_limit = seconds_limit;
    settings.memory_limit_bytes = memory_limit;
    settings.adaptive_cut = adaptive_cut;
    plan = make_plan({{"fwd", graph}}, *backend, options);
    report = compile_plan(plan, *backend, options.compile, settings);
  }

  const CompileOutcome& outcome() const { return *plan.distinct.at(0).outcome; }
  const PlannedPart& part() const { return plan.graphs.at(0).parts.at(0); }
  Result<std::unique_ptr<Runtime>> open() { return Runtime::create(std::move(plan), *backend, {}); }

  TempDir cache;
  std::unique_ptr<Backend> backend;
  Plan plan;
  CompileReport report;
};

// A profile in a file, named to the backend by a path relative to the working directory.
struct ProfileFile {
  explicit ProfileFile(const std::string& text) {
    publish_text(folder.path() / "chip.yaml", "name: chip\n" + text);
  }
  std::string backend() const {
    return "sim:" + fs::relative(folder.path() / "chip.yaml").string();
  }
  TempDir folder;
};

PlanOptions without(const std::string& pass) {
  PlanOptions options;
  options.passes.disabled = {pass};
  return options;
}

TEST(SimCompile, LegalGraphsAreBuiltInAChild) {
  for (const char* backend : {"sim:rbln", "sim:furiosa"}) {
    Compiled compiled(backend, neg_add_graph(true));
    EXPECT_EQ(compiled.outcome().kind, Kind::kBuilt);
    EXPECT_TRUE(compiled.report.failed.empty());
    EXPECT_TRUE(compiled.open().ok());
  }
}

// Without its legalisation the part is refused, goes to the host with the compiler's words, and
// gives the same values there.
TEST(SimCompile, RejectedPartsRunOnTheHost) {
  for (const char* name : {"fold_neg_add", "add_neg"}) {  // the pass, and its rule
    Compiled compiled("sim:rbln", neg_add_graph(false), without(name));
    EXPECT_EQ(compiled.outcome().kind, Kind::kRejected);
    EXPECT_NE(compiled.outcome().reason.find("DEVICE_GRAPH_CONVERSION"), std::string::npos);
    EXPECT_TRUE(compiled.part().on_host);
    EXPECT_NE(compiled.part().host_reason.find("DEVICE_GRAPH_CONVERSION"), std::string::npos);
    const auto runtime = compiled.open().take();
    const auto reference = make_backend("cpu:reference").take();
    const auto expected = make_runtime({{"fwd", neg_add_graph(false)}}, *reference, {});
    const Tensor got = run_graph(*runtime, "g").at("y"), want = run_graph(*expected, "g").at("y");
    EXPECT_LE(difference(got, want).rel_l2, 1e-6);
  }
}

TEST(SimCompile, AMatmulBehindNegAddCrashesTheCompiler) {
  Compiled compiled("sim:rbln", neg_add_graph(true), without("fold_neg_add"));
  EXPECT_EQ(compiled.outcome().kind, Kind::kCrashed);
  EXPECT_NE(compiled.outcome().reason.find("SIGSEGV"), std::string::npos)
      << compiled.outcome().reason;
  EXPECT_NE(compiled.outcome().log_tail.find("segmentation fault"), std::string::npos);
  EXPECT_TRUE(compiled.part().on_host);
}

// Cut between the neg and the add, both compile.
TEST(SimCompile, TheCutFindsAWayRoundARejection) {
  for (const bool product_behind : {false, true}) {
    Compiled compiled("sim:rbln", neg_add_graph(product_behind), without("fold_neg_add"), 60, 0,
                      /*adaptive_cut=*/true);
    const std::vector<PlannedPart>& parts = compiled.plan.graphs.at(0).parts;
    EXPECT_GT(parts.size(), 1u);
    for (const PlannedPart& part : parts) EXPECT_FALSE(part.on_host) << part.host_reason;
    EXPECT_FALSE(compiled.report.cuts.empty());
  }
}

TEST(SimCompile, PadsAreJoinedForFuriosa) {
  Builder b("g");
  b.output("y", ops::exp(ops::pad(b.input("x", {DType::kF32, {4, 4}}), {1, 0}, {0, 2})));
  const Graph graph = std::move(b).build();
  EXPECT_EQ(Compiled("sim:furiosa", graph).outcome().kind, Kind::kBuilt);
  Compiled refused("sim:furiosa", graph, without("pad_to_concat"));
  EXPECT_EQ(refused.outcome().kind, Kind::kRejected);
  EXPECT_NE(refused.outcome().reason.find("constant_pad_nd"), std::string::npos);
}

TEST(SimCompile, UnknownLegalisationsAreNamed) {
  const ProfileFile file("legalise: [fold_everything]\n");
  try {
    Compiled compiled(file.backend(), neg_add_graph(false));
    FAIL() << "planned with a pass that there is not";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("chip.yaml: legalise: there is no such pass; got "
                        "'fold_everything'; hint: use fold_neg_add"),
              std::string::npos)
        << error.what();
  }
}

TEST(SimCompile, PlantedFaultsAreOutcomes) {
  struct Case {
    const char* kind;
    Kind outcome;
    const char* reason;
  };
  const Case cases[] = {{"reject", Kind::kRejected, "planted fault"},
                        {"crash", Kind::kCrashed, "SIGSEGV"},
                        {"hang", Kind::kTimedOut, "timed out"},
                        {"out-of-memory", Kind::kOutOfMemory, "memory"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.kind);
    const ProfileFile file(std::string("faults:\n  - {when: compile, kind: ") + c.kind +
                           ", part: matmul(}\n");
    const bool hang = c.outcome == Kind::kTimedOut;
    Compiled hit(file.backend(), neg_add_graph(true), {}, hang ? 1 : 60, int64_t{500} << 20);
    EXPECT_EQ(hit.outcome().kind, c.outcome) << hit.outcome().reason;
    EXPECT_NE(hit.outcome().reason.find(c.reason), std::string::npos) << hit.outcome().reason;
    EXPECT_TRUE(hit.part().on_host);
    EXPECT_EQ(hit.report.failed.size(), 1u);
    EXPECT_TRUE(hit.open().ok()) << "the host takes over";
    Builder b("g");
    b.output("y", ops::exp(b.input("x", {DType::kF32, {4, 4}})));
    Compiled other(file.backend(), std::move(b).build());
    EXPECT_EQ(other.outcome().kind, Kind::kBuilt) << "another part is spared";
  }
}

// A profile that changes while a run is under way must not run parts of the old one.
TEST(SimCompile, ChangedProfilesAreAnotherCompiler) {
  const ProfileFile file("");
  Compiled compiled(file.backend(), neg_add_graph(false));
  EXPECT_EQ(compiled.outcome().kind, Kind::kBuilt);
  publish_text(file.folder.path() / "chip.yaml", "name: chip\nmemory_bytes: 100000\n");
  compiled.backend = make_backend(file.backend()).take();
  const auto runtime = compiled.open().take();
  const PlannedPart& part = runtime->plan().graph("g").parts.at(0);
  EXPECT_TRUE(part.on_host);
  EXPECT_NE(part.host_reason.find("sim blob: must be made by sim "), std::string::npos)
      << part.host_reason;
}

TEST(SimRuntime, FaultsOfLoadingAndRunningAreErrors) {
  struct Case {
    const char *fault, *what;
    ErrorKind kind;
    bool at_load;
  };
  const Case cases[] = {
      {"when: load, kind: crash", "the loader aborted", ErrorKind::kRetriable, true},
      {"when: load, kind: out-of-memory", "memory is exhausted", ErrorKind::kRetriable, true},
      {"when: run, kind: timeout", "timed out", ErrorKind::kRetriable, false},
      {"when: run, kind: lost", "is lost", ErrorKind::kRetriable, false}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.fault);
    const ProfileFile file("faults:\n  - {" + std::string(c.fault) + "}\n");
    Compiled compiled(file.backend(), neg_add_graph(false));
    auto runtime = compiled.open();
    EXPECT_EQ(runtime.ok(), !c.at_load);
    Error error;
    if (!runtime) {
      error = runtime.error();
    } else {
      try {
        run_graph(*runtime.value(), "g");
        FAIL() << "ran";
      } catch (const UserError& thrown) {
        error = thrown.error();
      }
    }
    EXPECT_EQ(error.kind, c.kind);
    EXPECT_NE(error.text().find(c.what), std::string::npos) << error.text();
    EXPECT_NE(error.text().find("g.0"), std::string::npos) << "the part is named: " << error.text();
  }
}

TEST(SimRuntime, PartsRefusedAtLoadRunOnTheHost) {
  const ProfileFile file("faults:\n  - {when: load, kind: reject}\n"), right("");
  Compiled compiled(file.backend(), neg_add_graph(false)),
      good(right.backend(), neg_add_graph(false));
  const auto runtime = compiled.open().take();
  const PlannedPart& part = runtime->plan().graph("g").parts.at(0);
  EXPECT_TRUE(part.on_host);
  EXPECT_NE(part.host_reason.find("refuses the compiled part"), std::string::npos);
  const Tensor got = run_graph(*runtime, "g").at("y");
  EXPECT_LE(difference(got, run_graph(*good.open().take(), "g").at("y")).rel_l2, 1e-6);
}

// `wrong` is the one fault that nothing reports: only a comparison finds it.
TEST(SimRuntime, WrongResultsAreSilentAndFarOff) {
  const ProfileFile file("faults:\n  - {when: run, kind: wrong}\n"), right("");
  const auto result = [&](const ProfileFile& profile) {
    Compiled compiled(profile.backend(), neg_add_graph(false));
    return run_graph(*compiled.open().take(), "g").at("y");
  };
  EXPECT_GT(difference(result(file), result(right)).rel_l2, 0.5);
}

// Memory of its own: parts on the host get their values by copies, with the same results.
TEST(SimRuntime, HostPartsReadDeviceMemory) {
  const ProfileFile file("ops: [matmul, add, mul, neg, sub, sigmoid, reduce_sum]\n");
  PlanOptions options = cut_to(1);
  Compiled compiled(file.backend(), blocks_graph(), options);
  size_t on_host = 0;
  for (const PlannedPart& part : compiled.plan.graphs[0].parts) on_host += part.on_host;
  EXPECT_EQ(on_host, 1u);  // the one with exp
  const auto runtime = compiled.open().take();
  EXPECT_EQ(runtime->device().allocate(1).take()->host_pointer(), nullptr);
  const auto reference = make_backend("cpu:reference").take();
  const auto expected = make_runtime({{"fwd", blocks_graph()}}, *reference, options);
  const auto got = run_graph(*runtime, "blocks"), want = run_graph(*expected, "blocks");
  for (const auto& [name, tensor] : want) {
    EXPECT_LE(difference(got.at(name), tensor).rel_l2, 1e-5) << name;
  }
}

TEST(SimRuntime, ProbesSeeTheDevicesClock) {
  const ProfileFile file("costs: {launch_seconds: 2.5}\n");
  Compiled compiled(file.backend(), neg_add_graph(false));
  const auto runtime = compiled.open().take();
  std::vector<double> seconds;
  runtime->set_probe([&](const Runtime::PartCall& call) { seconds.push_back(call.seconds); });
  run_graph(*runtime, "g");
  EXPECT_EQ(seconds, std::vector<double>{2.5});
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  if (const auto code = npu::testing_fakes::run_if_child(argc, argv)) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
