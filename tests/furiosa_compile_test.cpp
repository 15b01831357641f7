// The furiosa backend under the planner: children and their limits, the cache, estimates.
#include <chrono>
#include <thread>

#include "compile/estimate.h"
#include "compile/plan.h"
#include "compile_fakes.h"
#include "furiosa_test.h"

namespace npu {
namespace {

using Kind = CompileOutcome::Kind;

class FuriosaCompileTest : public FuriosaTest {
 protected:
  FuriosaCompileTest() {
    settings.cache_dir = folder.path() / "cache";
    settings.worker = testing_fakes::real_worker_argv();
    settings.adaptive_cut = false;
    settings.seconds_limit = 60;
  }

  // Of one part, by a backend of this name.
  CompileReport compile(const std::string& name = "furiosa") {
    const auto backend = make_backend(name).take();
    plan = make_plan({{"fwd", bf16_product()}}, *backend, {});
    return compile_plan(plan, *backend, options, settings);
  }
  const CompileOutcome& outcome() const { return *plan.distinct.at(0).outcome; }

  std::vector<Result<double>> estimates(const std::vector<Graph>& graphs) {
    const auto backend = make_backend("furiosa").take();
    std::vector<const Graph*> parts;
    for (const Graph& graph : graphs) parts.push_back(&graph);
    return estimate_parts(parts, *backend, options, settings).take();
  }

  CompileOptions options;
  CompileSettings settings;
  Plan plan;
};

// A process that nobody waits for stays as a zombie.
bool alive(pid_t pid) {
  const fs::path stat = "/proc/" + std::to_string(pid) + "/stat";
  if (!fs::exists(stat)) return false;
  const std::string text = read_text(stat);
  return text.find(") Z") == std::string::npos && text.find(") X") == std::string::npos;
}

bool gone_soon(pid_t pid) {
  for (int i = 0; i < 200 && alive(pid); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return !alive(pid);
}

pid_t pid_of(const std::string& call) {
  return std::atoi(call.substr(call.find("pid ") + 4).c_str());
}

TEST_F(FuriosaCompileTest, ASecondCompileBuildsNothing) {
  EXPECT_EQ(compile().built, 1u);
  const size_t before = calls().size();
  EXPECT_EQ(compile().cached, 1u);
  EXPECT_EQ(compile("furiosa:1").cached, 1u) << "code is no card's own";
  EXPECT_EQ(compile("furiosa:auto").cached, 1u);
  EXPECT_EQ(calls().size(), before);
  options.vendor = {{"target", "renegade"}};
  EXPECT_EQ(compile().built, 1u);
}

TEST_F(FuriosaCompileTest, AMissNamesTheTarget) {
  options.vendor = {{"target", "renegade"}};
  compile();
  options.vendor = {{"target", "renegade-8pe"}};
  settings.expect_cached = true;
  try {
    compile();
    FAIL() << "not expected in the cache";
  } catch (const UserError& error) {
    EXPECT_NE(error.error().text().find("option target changed: renegade-8pe (was renegade)"),
              std::string::npos)
        << error.error().text();
  }
}

TEST_F(FuriosaCompileTest, TheCompilerFallsUnderTheTimeLimit) {
  misbehave("hang");
  settings.seconds_limit = 2;
  compile();
  EXPECT_EQ(outcome().kind, Kind::kTimedOut);
  ASSERT_EQ(calls().size(), 1u);
  EXPECT_TRUE(gone_soon(pid_of(calls()[0])));
}

TEST_F(FuriosaCompileTest, TheCompilerFallsUnderTheMemoryLimit) {
  misbehave("memory");
  settings.memory_limit_bytes = int64_t{256} << 20;
  compile();
  EXPECT_EQ(outcome().kind, Kind::kOutOfMemory);
  ASSERT_EQ(calls().size(), 1u);
  EXPECT_TRUE(gone_soon(pid_of(calls()[0])));
}

TEST_F(FuriosaCompileTest, WhatThePartIsNotToBlameForIsTriedAgain) {
  misbehave("no-cross");
  const CompileReport report = compile();
  EXPECT_FALSE(report.lasting);
  ASSERT_EQ(report.failed.size(), 1u);
  EXPECT_NE(report.failed[0].reason.find("apt install"), std::string::npos);
  misbehave("");
  EXPECT_EQ(compile().built, 1u);
}

TEST_F(FuriosaCompileTest, ARefusalIsKept) {
  misbehave("panic");
  EXPECT_TRUE(compile().lasting);
  EXPECT_EQ(outcome().kind, Kind::kRejected);
  misbehave("");
  EXPECT_EQ(compile().built, 0u);
}

TEST_F(FuriosaCompileTest, WithoutTheCrossCompilerNothingStarts) {
  fs::remove(bin() / "aarch64-linux-gnu-gcc");
  variables.set("PATH", bin().string());
  EXPECT_THROW(compile(), UserError);
  EXPECT_TRUE(calls().empty());
}

TEST_F(FuriosaCompileTest, JobsShareTheThreads) {
  variables.set("RAYON_NUM_THREADS", "6");
  settings.jobs = 3;
  compile();
  ASSERT_EQ(calls().size(), 1u);
  EXPECT_NE(calls()[0].find("threads 2 "), std::string::npos) << calls()[0];
}

TEST_F(FuriosaCompileTest, EstimatesAreAskedForOnce) {
  settings.jobs = 2;
  const auto first = estimates({bf16_product(16), bf16_product(1024)});
  ASSERT_TRUE(first[0].ok() && first[1].ok());
  EXPECT_LT(first[0].value(), first[1].value());
  EXPECT_EQ(calls().size(), 2u);
  EXPECT_EQ(estimates({bf16_product(1024), bf16_product(16)})[0].value(), first[1].value());
  EXPECT_EQ(calls().size(), 2u);
  options.vendor = {{"target", "renegade"}};
  EXPECT_GT(estimates({bf16_product(1024)})[0].value(), first[1].value());
  EXPECT_EQ(calls().size(), 3u);
}

TEST_F(FuriosaCompileTest, RefusedEstimatesAreKeptAndInterruptedOnesAreNot) {
  misbehave("zero");
  EXPECT_FALSE(estimates({bf16_product()})[0].ok());
  misbehave("hang");
  settings.seconds_limit = 1;
  EXPECT_FALSE(estimates({bf16_product(32)})[0].ok());
  misbehave("");
  settings.seconds_limit = 60;
  const auto again = estimates({bf16_product(), bf16_product(32)});
  ASSERT_FALSE(again[0].ok());
  EXPECT_NE(again[0].error().text().find("estimates 0 cycles"), std::string::npos);
  EXPECT_TRUE(again[1].ok());
}

TEST_F(FuriosaCompileTest, AnEstimateIsNoCompiledPart) {
  estimates({bf16_product()});
  EXPECT_EQ(compile().built, 1u);
}

TEST_F(FuriosaCompileTest, WithoutTheCompilerThereAreNoEstimates) {
  variables.set("NPU_LORA_FURIOSA_TCC", "/nonexistent");
  const auto backend = make_backend("furiosa").take();
  const Graph graph = bf16_product();
  const Graph* const parts[] = {&graph};
  EXPECT_FALSE(estimate_parts(parts, *backend, options, settings).ok());
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  if (const auto code = npu::testing_fakes::run_if_child(argc, argv)) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
