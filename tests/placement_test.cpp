// --host-parts auto: the choice, its evidence on disk, and going on when the device fails.
#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "base/log.h"
#include "base/random.h"
#include "compile_fakes.h"
#include "golden_fixture.h"
#include "train/device_errors.h"
#include "train/placement.h"
#include "train/trainer.h"

namespace npu {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// ---- the choice --------------------------------------------------------------------------------

// A model whose groups' errors add up.
struct Model {
  std::vector<GroupMeasure> groups;
  std::map<std::string, double> errors;
  HostGroups default_groups;
  int runs = 0;

  void add(const std::string& group, double device_seconds, double host_seconds, double error) {
    groups.push_back({group, device_seconds, host_seconds, 0, 0, true});
    errors[group] = error;
  }
  double error(const HostGroups& on_host) const {
    double sum = 0;
    for (const auto& [group, e] : errors) sum += on_host.contains(group) ? 0 : e;
    return sum;
  }
  double seconds(const HostGroups& on_host) const {
    double sum = 0;
    for (const GroupMeasure& g : groups)
      sum += on_host.contains(g.group) ? g.host_seconds : g.device_seconds;
    return sum;
  }
  Placement choose() {
    Placement placement;
    placement.groups = groups;
    placement.default_groups = default_groups;
    choose_placement(
        placement,
        [&](const HostGroups& on_host, bool) {
          ++runs;
          Comparison c;
          c.worst_grad_rel = error(on_host);
          c.finite = std::isfinite(c.worst_grad_rel);
          return c;
        },
        CheckLimits{});
    return placement;
  }
};

TEST(ChoosePlacement, KeepsAnInexactGroupOffTheDevice) {
  Model model;
  model.add("fwd", 1, 3, 0.13);
  model.add("bwd", 2, 6, 0.01);
  model.add("rms", 0.1, 0.3, 0.001);
  model.add("ce-grad", 3, 2, 0.001);  // faster on the host
  model.default_groups = {"fwd"};
  const Placement p = model.choose();
  EXPECT_EQ(p.host_groups, (HostGroups{"fwd", "ce-grad"}));
  EXPECT_DOUBLE_EQ(p.step_seconds, 3 + 2 + 0.1 + 2);
  EXPECT_DOUBLE_EQ(p.default_seconds, 3 + 2 + 0.1 + 3);
  EXPECT_DOUBLE_EQ(p.groups[0].grad_rel, 0.13);
  ASSERT_FALSE(p.trials.empty());
  EXPECT_FALSE(p.trials[0].pass);  // fwd alone
}

TEST(ChoosePlacement, LeavesAllOnAGoodDevice) {
  Model model;
  for (const char* group : {"fwd", "bwd", "rms", "rms-bwd", "ce-grad"})
    model.add(group, 1, 2, 0.001);
  const Placement p = model.choose();
  EXPECT_TRUE(p.host_groups.empty());
  EXPECT_EQ(p.trials.size(), 1u);
}

TEST(ChoosePlacement, SeesErrorsThatOnlyAddUpTogether) {
  Model model;
  model.add("fwd", 1, 9, 0.03);
  model.add("bwd", 1, 2, 0.03);
  model.add("rms", 1, 2, 0.03);
  EXPECT_EQ(model.choose().host_groups, (HostGroups{"bwd", "rms"}));
}

TEST(ChoosePlacement, FallsBackToTheHost) {
  Model model;
  for (const char* group : {"fwd", "bwd", "ce-grad"}) model.add(group, 1, 2, kInfinite);
  const Placement p = model.choose();
  EXPECT_EQ(p.host_groups.size(), 3u);
  EXPECT_EQ(model.runs, 3);  // each alone; nothing else stands a chance
  EXPECT_EQ(p.groups[1].grad_rel, kInfinite);
}

TEST(ChoosePlacement, GroupsWithoutDevicePartsStayOnTheHost) {
  Model model;
  model.add("fwd", 2, 2, 0);
  model.add("bwd", 1, 2, 0);
  model.groups[0].on_device = false;
  EXPECT_EQ(model.choose().host_groups, (HostGroups{"fwd"}));
}

// Whatever the numbers: it passes, nothing that passed was faster, the default is not faster if it
// passes, and the number of runs is bounded.
TEST(ChoosePlacement, IsRightForRandomNumbers) {
  int moved = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const RandomStream random(seed, "placement");
    Model model;
    uint64_t i = 0;
    for (const std::string_view group : kPlacementGroups) {
      const double device = random.uniform(i++), host = random.uniform(i++) * 3;
      model.add(std::string(group), device, host,
                random.uniform(i++) < 0.3 ? random.uniform(i) * 0.1 : random.uniform(i) * 0.01);
      ++i;
      if (random.uniform(i++) < 0.3) model.default_groups.emplace(group);
    }
    const Placement p = model.choose();
    EXPECT_LE(model.error(p.host_groups), 0.05);
    EXPECT_NEAR(p.step_seconds, model.seconds(p.host_groups), 1e-12);
    EXPECT_LE(model.runs, 6 + 16 + 1);
    if (model.error(model.default_groups) < 0.04) {
      EXPECT_LE(p.step_seconds, p.default_seconds);
    }
    for (const PlacementTrial& t : p.trials) {
      if (t.pass) {
        EXPECT_GE(t.step_seconds, p.step_seconds);
      }
    }
    moved += !p.host_groups.empty() && p.host_groups.size() < 6;
  }
  EXPECT_GT(moved, 1000);
}

// ---- evidence ----------------------------------------------------------------------------------

Placement example() {
  Placement p;
  p.digest = std::string(64, 'a');
  p.backend = "sim:rbln";
  p.compiler = "1.0";
  p.machine = "CPU";
  p.layers = 16;
  p.groups = {{"fwd", 0.5, 1.5, 0.13, kInfinite, true}, {"bwd", 1, 2, 0.01, 0, false}};
  p.trials = {{{"bwd"}, 2.5, kInfinite, 0.1, false}, {{"fwd", "bwd"}, 3.5, 0.01, 0.001, true}};
  p.default_groups = {"fwd"};
  p.default_seconds = 2.5;
  p.host_groups = {"fwd", "bwd"};
  p.step_seconds = 3.5;
  return p;
}

TEST(PlacementEvidence, RoundTrips) {
  const TempDir dir;
  const Placement p = example();
  write_placement(dir.path(), p);
  const auto read = read_placement(dir.path(), p.digest);
  ASSERT_TRUE(read);
  EXPECT_EQ(print_evidence(*read), print_evidence(p));
  EXPECT_EQ(read->groups[0].loss_rel, kInfinite);
  EXPECT_EQ(read->host_groups, p.host_groups);
  EXPECT_FALSE(read_placement(dir.path(), std::string(64, 'b')));
  const std::vector<std::string> lines = describe_placement(p);
  EXPECT_EQ(lines[0],
            "fwd: device 0.5 s, host 1.5 s a step; alone on the device worst gradient error 13 %, "
            "loss inf %");
  EXPECT_EQ(lines.back(),
            "chosen: bwd,fwd on the host, 3.5 s a step; the backend's default, fwd on the host, "
            "2.5 s");
}

TEST(PlacementEvidence, DamageIsDropped) {
  set_log_level(LogLevel::kError);
  const TempDir dir;
  const Placement p = example();
  const std::string text = print_evidence(p);
  const fs::path file = dir.path() / "placement" / (p.digest + ".json");
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  const std::string damaged[] = {"",
                                 "[]",
                                 "{",
                                 text.substr(0, text.size() / 2),
                                 std::string(2 << 20, ' '),
                                 replaced("\"format\": 1", "\"format\": 2"),
                                 replaced("0.5", "-1"),
                                 replaced("0.5", "\"x\""),
                                 replaced("\"fwd\"", "\"gpu\""),
                                 replaced("sim:rbln", "\\u001b[2J"),
                                 replaced(std::string(64, 'a'), std::string(64, 'b')),
                                 replaced("true", "1")};
  for (const std::string& bad : damaged) {
    write_placement(dir.path(), p);
    publish_text(file, bad);
    EXPECT_FALSE(read_placement(dir.path(), p.digest)) << bad.substr(0, 80);
    EXPECT_FALSE(fs::exists(file));
  }
  set_log_level(LogLevel::kInfo);
}

SessionOptions golden_session(const Golden& golden, const fs::path& cache) {
  SessionOptions session;
  session.backend = "cpu:reference";
  session.threads = 2;
  session.compile.cache_dir = cache;
  session.graphs.layer.lora = golden.adapter.lora;
  session.graphs.layer.batch = golden.batch.batch;
  session.graphs.layer.seq_len = golden.batch.seq_len;
  session.graphs.layer.weight_dtype = DType::kF32;
  session.graphs.loss_rows = 64;
  session.auto_placement = true;
  return session;
}

TEST(FindPlacement, MeasuresOnceAndKeepsTheEvidence) {
  const Golden golden("llama_tiny");
  const TempDir cache;
  const SessionOptions session = golden_session(golden, cache.path());
  EXPECT_FALSE(known_placement(golden.model.config, session));
  const Placement first = find_placement(golden.model.config, session, *golden.model.weights);
  EXPECT_EQ(first.backend, "cpu:reference");
  EXPECT_EQ(first.groups.size(), 6u);
  for (const GroupMeasure& g : first.groups) {
    EXPECT_LT(g.grad_rel, 1e-4) << g.group;
    EXPECT_TRUE(g.on_device);
    if (g.group == "ce-stats") continue;  // no part of a training step
    EXPECT_GT(g.device_seconds, 0) << g.group;
    EXPECT_GT(g.host_seconds, 0) << g.group;
  }
  EXPECT_LE(first.step_seconds, first.default_seconds);
  // Again: from the file, to the last digit, whether or not there is a way to compile.
  SessionOptions again = session;
  again.compile.expect_cached = true;
  again.graphs.eval = !session.graphs.eval;  // train with and without evaluation share it
  const Placement second = find_placement(golden.model.config, again, *golden.model.weights);
  EXPECT_EQ(print_evidence(second), print_evidence(first));
  EXPECT_TRUE(known_placement(golden.model.config, session));
  // Another shape is another question.
  SessionOptions other = session;
  other.graphs.loss_rows = 32;
  EXPECT_FALSE(known_placement(golden.model.config, other));
}

// Nothing runs where the backend happens to put it when it was to be measured.
TEST(FindPlacement, ComesBeforePlanning) {
  const Golden golden("llama_tiny");
  const TempDir cache;
  EXPECT_THROW(prepare(golden.model.config, golden_session(golden, cache.path())), InternalError);
}

TEST(FindPlacement, LimitsOfCompilingBelongToTheEvidence) {
  const Golden golden("llama_tiny");
  const TempDir cache;
  const SessionOptions session = golden_session(golden, cache.path());
  find_placement(golden.model.config, session, *golden.model.weights);
  ASSERT_TRUE(known_placement(golden.model.config, session));
  for (const int which : {0, 1, 2}) {
    SessionOptions other = session;
    if (which == 0) other.compile.seconds_limit = 60;
    if (which == 1) other.compile.seconds_budget = 60;
    if (which == 2) other.compile.memory_limit_bytes = int64_t{1} << 30;
    EXPECT_FALSE(known_placement(golden.model.config, other)) << which;
  }
}

// What an accident led to serves its run and is measured again by the next.
TEST(FindPlacement, AnAccidentIsNoEvidence) {
  set_log_level(LogLevel::kError);
  const Golden golden("llama_tiny");
  const TempDir cache;
  SessionOptions untried = golden_session(golden, cache.path());
  untried.compile.seconds_budget = 1e-9;
  EXPECT_EQ(find_placement(golden.model.config, untried, *golden.model.weights).host_groups.size(),
            6u);
  EXPECT_FALSE(known_placement(golden.model.config, untried));

  publish_text(cache.path() / "chip.yaml",
               "name: chip\nfaults: [{when: run, kind: timeout, launch: 2, part: \"matmul\"}]\n");
  SessionOptions failing = golden_session(golden, cache.path());
  failing.backend = "sim:" + (cache.path() / "chip.yaml").string();
  find_placement(golden.model.config, failing, *golden.model.weights);
  EXPECT_FALSE(known_placement(golden.model.config, failing));
  publish_text(cache.path() / "chip.yaml", "name: chip\n");
  find_placement(golden.model.config, failing, *golden.model.weights);
  EXPECT_TRUE(known_placement(golden.model.config, failing));
  set_log_level(LogLevel::kInfo);
}

TEST(FindPlacement, WorksForEvaluationAlone) {
  const Golden golden("llama_tiny");
  const TempDir cache;
  SessionOptions session = golden_session(golden, cache.path());
  session.graphs.train = false;
  session.graphs.eval = true;
  const Placement p = find_placement(golden.model.config, session, *golden.model.weights);
  EXPECT_EQ(p.groups.size(), 3u);  // fwd, rms, ce-stats
  for (const GroupMeasure& g : p.groups) EXPECT_GT(g.device_seconds, 0) << g.group;
}

// ---- device errors -----------------------------------------------------------------------------

// A trainer on a device that fails as asked.
struct FailingRun {
  Golden golden{"llama_tiny"};
  TempDir cache;
  std::unique_ptr<ModelRunner> runner;
  std::vector<std::string> moved;

  explicit FailingRun(testing_fakes::FakeOptions fake) {
    fake.in_process = true;
    SessionOptions session = golden_session(golden, cache.path());
    session.auto_placement = false;
    Prepared prepared = prepare(golden.model.config, session);
    prepared.backend = std::make_unique<testing_fakes::FakeBackend>(fake);
    compile(prepared);
    runner = load(golden.model.config, std::move(prepared), *golden.model.weights);
  }
  Result<StepReport> step(Trainer& trainer) {
    return moving_failures(
        runner->runtime(),
        [&] {
          return trainer.train_step({&golden.batch, 1});
        },
        [&](const std::string& group, const Error&) { moved.push_back(group); });
  }
  std::vector<double> losses(int steps) {
    Trainer trainer(*runner, golden.parameters(), TrainConfig{});
    std::vector<double> result;
    for (int i = 0; i < steps; ++i) result.push_back(step(trainer).take().loss);
    return result;
  }
};

TEST(DeviceErrors, TheGroupThatFailedMovesAndTheStepIsRepeated) {
  const std::vector<double> expected = FailingRun({}).losses(4);
  testing_fakes::FakeOptions fake;
  fake.fail_submit = 3;  // in the backward of the first step
  FailingRun run(fake);
  const std::vector<double> losses = run.losses(4);
  EXPECT_EQ(run.moved.size(), 1u);
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i] / expected[i], 1, 1e-5);
}

TEST(DeviceErrors, ALostDeviceLeavesAllOnTheHost) {
  const std::vector<double> expected = FailingRun({}).losses(4);
  testing_fakes::FakeOptions fake;
  fake.fail_submit = 9;
  fake.stays_lost = true;
  FailingRun run(fake);
  const std::vector<double> losses = run.losses(4);
  EXPECT_EQ(run.moved.size(), 5u);  // all groups of a training step
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i] / expected[i], 1, 1e-5);
  for (const PlannedGraph& graph : run.runner->runtime().plan().graphs) {
    for (const PlannedPart& part : graph.parts) {
      EXPECT_TRUE(part.on_host);
      EXPECT_NE(part.host_reason.find("was lost"), std::string::npos) << part.host_reason;
    }
  }
}

}  // namespace
}  // namespace npu
