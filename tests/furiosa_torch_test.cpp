// The second compiler for RNGD over a stand-in for furiosa.torch: which parts go to it, what comes
// of them, and that every way in which it can fail ends as a value that says so.
#include "backend/furiosa_torch.h"

#include <chrono>
#include <thread>

#include "backend/furiosa.h"
#include "backend/furiosa_blob.h"
#include "backend/furiosa_device.h"
#include "backend_cases.h"
#include "compile/plan.h"
#include "compile_fakes.h"
#include "furiosa_cards.h"
#include "furiosa_test.h"

namespace npu {
namespace {

using Kind = CompileOutcome::Kind;
using Vendor = std::vector<std::pair<std::string, std::string>>;

CompileOptions with(Vendor vendor) {
  CompileOptions options;
  options.vendor = std::move(vendor);
  return options;
}
const CompileOptions kByTorch = with({{"compiler", "torch"}, {"target", "renegade"}});

// TCL has no truth values.
Graph larger_of_two() {
  Builder b("part");
  const Value x = b.input("i0", {DType::kBF16, {8, 32}});
  const Value y = b.input("i1", {DType::kBF16, {8, 32}});
  b.output("o0", ops::select(ops::compare(x, y, "gt"), x, y));
  return std::move(b).build();
}

void expect_says(const Error& error, ErrorKind kind, const std::string& words) {
  EXPECT_EQ(static_cast<int>(error.kind), static_cast<int>(kind)) << error.text();
  EXPECT_NE(error.text().find(words), std::string::npos) << error.text();
}

class FuriosaTorchTest : public FuriosaTest {
 protected:
  FuriosaTorchTest() : cards(FakeRuntime::kPython) {
    const std::string fakes = NPU_SOURCE_DIR "/tests/tools/fake_furiosa";
    paths = std::getenv("PYTHONPATH");
    variables.set("PYTHONPATH", paths + ":" + fakes + "/packages");
    variables.set("FAKE_TORCH_LOG", torch_log().string());
    for (const char* name : {"FAKE_TORCH_MODE", "FAKE_TORCH_ONLY"}) variables.unset(name);
    settings.cache_dir = folder.path() / "cache";
    settings.worker = testing_fakes::real_worker_argv();
    settings.adaptive_cut = false;
    settings.seconds_limit = 120;
  }
  void misbehave(const std::string& mode) { variables.set("FAKE_TORCH_MODE", mode); }
  fs::path torch_log() const { return folder.path() / "torch_calls"; }
  std::string torch_calls() const { return fs::exists(torch_log()) ? read_text(torch_log()) : ""; }
  static FuriosaBlob compiled(const Graph& part, const CompileOptions& options) {
    return decode_furiosa_blob(make_furiosa_entry()->compile(part, options).take()).take();
  }
  static Error error_of(const Graph& part, const CompileOptions& options) {
    const Result<Blob> blob = make_furiosa_entry()->compile(part, options);
    EXPECT_FALSE(blob.ok());
    return blob.ok() ? Error{} : blob.error();
  }
  const CompileOutcome& outcome_of(const Graph& part, const CompileOptions& options) {
    backend = make_backend("furiosa").take();
    PlanOptions planned;
    planned.compile = options;
    plan = make_plan({{"fwd", part}}, *backend, planned);
    report = compile_plan(plan, *backend, options, settings);
    return *plan.distinct.at(0).outcome;
  }

  FakeCards cards;
  std::string paths;  // without the packages' names
  std::unique_ptr<Backend> backend;
  CompileSettings settings;
  CompileReport report;
  Plan plan;
};

// ---- which compiler
// ------------------------------------------------------------------------------

TEST_F(FuriosaTorchTest, AutoTakesItForWhatTclDoesNotExpress) {
  EXPECT_TRUE(compiled(bf16_product(), {}).container == FuriosaContainer::kEdf);
  EXPECT_EQ(torch_calls(), "");
  const FuriosaBlob blob = compiled(larger_of_two(), with({{"target", "renegade-2pe"}}));
  EXPECT_TRUE(blob.container == FuriosaContainer::kRunnable);
  EXPECT_EQ(blob.target, "renegade-2pe");
  EXPECT_EQ(blob.inputs, (std::vector<std::string>{"i0", "i1"}));
  EXPECT_EQ(blob.outputs, std::vector<std::string>{"o0"});
  EXPECT_EQ(blob.compiler, "furiosa-torch 0.0+fake, torch 0.0+fake, form 2");
  EXPECT_EQ(torch_calls().substr(0, 29), "compile pes 2 hint  shapes  p");
  EXPECT_EQ(calls().size(), 1u) << "furiosa-tcc was asked for the other part only";
}

TEST_F(FuriosaTorchTest, TheOptionDecides) {
  EXPECT_TRUE(compiled(bf16_product(), kByTorch).container == FuriosaContainer::kRunnable);
  expect_says(error_of(larger_of_two(), with({{"compiler", "tcc"}})), ErrorKind::kBadInput,
              "select");
  expect_says(*make_furiosa_entry()->cannot_compile(with({{"compiler", "gcc"}})), ErrorKind::kUsage,
              "--compiler: no such compiler; got gcc");
}

TEST_F(FuriosaTorchTest, UnsupportedIsWhatNoCompilerTakes) {
  const Graph part = larger_of_two();
  const auto refused = [&](const CompileOptions& options) {
    const auto entry = make_furiosa_entry();
    for (size_t id = 0; id < part.nodes().size(); ++id) {
      if (entry->unsupported(part, static_cast<NodeId>(id), options)) return true;
    }
    return false;
  };
  EXPECT_FALSE(refused({}));
  EXPECT_FALSE(refused(kByTorch));
  EXPECT_TRUE(refused(with({{"compiler", "tcc"}})));
  variables.set("PYTHONPATH", paths);  // the packages are not installed
  EXPECT_TRUE(refused({}));
}

TEST_F(FuriosaTorchTest, WithoutItAutoIsTccAlone) {
  variables.set("PYTHONPATH", paths);
  expect_says(error_of(larger_of_two(), {}), ErrorKind::kBadInput, "select");
  expect_says(error_of(bf16_product(), kByTorch), ErrorKind::kRetriable,
              "furiosa-torch is not installed here");
  variables.set("NPU_LORA_FURIOSA_PYTHON", "/nonexistent/python");
  EXPECT_FALSE(find_furiosa_torch().ok());
  variables.unset("NPU_LORA_FURIOSA_PYTHON");
  expect_says(*make_furiosa_entry()->cannot_compile(kByTorch), ErrorKind::kBadInput,
              "set NPU_LORA_FURIOSA_PYTHON");
  EXPECT_TRUE(compiled(bf16_product(), {}).container == FuriosaContainer::kEdf);
}

// Where the native worker runs parts, auto makes none that it can't load.
TEST_F(FuriosaTorchTest, AutoHeedsTheWorker) {
  cards.variables.set("NPU_LORA_FURIOSA_WORKER", "native");
  expect_says(error_of(larger_of_two(), {}), ErrorKind::kBadInput, "select");
  EXPECT_EQ(torch_calls(), "");
}

TEST_F(FuriosaTorchTest, ItIsEnoughAlone) {
  variables.set("NPU_LORA_FURIOSA_TCC", "/nonexistent");
  EXPECT_EQ(outcome_of(bf16_product(), kByTorch).kind, Kind::kBuilt);
  expect_says(*make_furiosa_entry()->cannot_compile({}), ErrorKind::kBadInput, "furiosa-tcc");
}

// ---- keys and settings
// ---------------------------------------------------------------------------

TEST_F(FuriosaTorchTest, KeysSayWhichCompiler) {
  const auto entry = make_furiosa_entry();
  EXPECT_FALSE(entry->compiler_of(bf16_product(), {}).has_value());
  EXPECT_EQ(entry->compiler_of(larger_of_two(), {}).value(),
            "furiosa-torch 0.0+fake, torch 0.0+fake, form 2");
  EXPECT_EQ(outcome_of(bf16_product(), {}).kind, Kind::kBuilt);
  outcome_of(bf16_product(), with({{"compiler", "tcc"}}));
  EXPECT_EQ(report.cached, 1u) << "the same compiler, chosen otherwise";
  outcome_of(bf16_product(), with({{"compiler", "torch"}}));
  EXPECT_EQ(report.built, 1u);
  outcome_of(bf16_product(), with({{"compiler", "torch"}, {"target", "renegade"}}));
  EXPECT_EQ(report.built, 1u);
  outcome_of(bf16_product(), with({{"compiler", "torch"}, {"tactic", "NoConstraint"}}));
  EXPECT_EQ(report.built, 1u);
  outcome_of(bf16_product(), with({{"compiler", "torch"}, {"tactic", "NoConstraint"}}));
  EXPECT_EQ(report.cached, 1u);
}

TEST_F(FuriosaTorchTest, HintsReachIt) {
  compiled(bf16_product(), with({{"compiler", "torch"},
                                 {"target", "renegade-4pe"},
                                 {"tactic", "DefaultWithMaxNumUniqueShapes"},
                                 {"max-shapes", "8"}}));
  EXPECT_NE(torch_calls().find("pes 4 hint Default shapes 8 pid"), std::string::npos)
      << torch_calls();
  compiled(bf16_product(), with({{"compiler", "torch"}, {"max-shapes", "16"}}));
  EXPECT_NE(torch_calls().find(" quick 16\n"), std::string::npos) << torch_calls();
  expect_says(
      *make_furiosa_entry()->cannot_compile(with({{"compiler", "torch"}, {"tactic", "Fast"}})),
      ErrorKind::kUsage, "--tactic: no such hint; got Fast");
}

TEST_F(FuriosaTorchTest, AHintThatIsNoYamlIsNoFaultOfThePart) {
  const fs::path file = folder.path() / "hint.yaml";
  publish_text(file, "global_hint: [\n");
  variables.set("TACTIC_HINT_PATH", file.string());
  expect_says(error_of(bf16_product(), kByTorch), ErrorKind::kUsage,
              "TACTIC_HINT_PATH: the compiler does not take the bounds in " + file.string());
  outcome_of(bf16_product(), kByTorch);
  EXPECT_FALSE(report.lasting);
}

TEST_F(FuriosaTorchTest, AnEarlierReleaseNamesThingsOtherwise) {
  variables.set("FAKE_RNGD_RELEASE", "2026.2");
  EXPECT_TRUE(compiled(bf16_product(), kByTorch).container == FuriosaContainer::kRunnable);
  compiled(bf16_product(), with({{"compiler", "torch"}, {"tactic", "NoConstraint"}}));
  EXPECT_NE(torch_calls().find("hint NoConstraint"), std::string::npos) << torch_calls();
  expect_says(error_of(bf16_product(),
                       with({{"compiler", "torch"}, {"tactic", "ForLlmModelComputeBound"}})),
              ErrorKind::kRetriable, "has no hint ForLlmModelComputeBound");
  misbehave("drop_output");
  expect_says(error_of(bf16_product(), kByTorch), ErrorKind::kBadInput,
              "must keep 1 outputs; got 0");
}

TEST_F(FuriosaTorchTest, NobodyEstimatesItsParts) {
  const auto cycles = make_furiosa_entry()->estimate_cycles(larger_of_two(), {});
  ASSERT_FALSE(cycles.ok());
  expect_says(cycles.error(), ErrorKind::kBadInput, "makes no estimates");
}

// ---- how it fails
// --------------------------------------------------------------------------------

TEST_F(FuriosaTorchTest, EveryFaultIsSaid) {
  const std::tuple<const char*, ErrorKind, const char*> faults[] = {
      {"import", ErrorKind::kRetriable, "ImportError: libfuriosa.so: undefined symbol"},
      {"no_names", ErrorKind::kRetriable, "has no CompileModule.from_exported"},
      {"unsupported", ErrorKind::kBadInput,
       "refuses the part; got UnsupportedOpError: no tactic found for operator 3"},
      {"panic", ErrorKind::kBadInput, "PanicException: called `Option::unwrap()`"},
      {"abort", ErrorKind::kBadInput, "SIGABRT: panic in a function that cannot unwind"},
      {"drop_output", ErrorKind::kBadInput, "must keep 1 outputs; got 0"},
      {"wrong_type", ErrorKind::kBadInput, "must keep outputs 0 of [16, 32]"},
      {"no_bytes", ErrorKind::kRetriable, "left nothing"}};
  for (const auto& [mode, kind, words] : faults) {
    misbehave(mode);
    expect_says(error_of(bf16_product(), kByTorch), kind, words);
  }
}

TEST_F(FuriosaTorchTest, RefusalsAreKeptAndFaultsOfTheMachineAreNot) {
  misbehave("import");
  EXPECT_EQ(outcome_of(bf16_product(), kByTorch).kind, Kind::kRejected);
  EXPECT_FALSE(report.lasting);
  misbehave("unsupported");
  outcome_of(bf16_product(), kByTorch);
  EXPECT_TRUE(report.lasting);
  misbehave("");
  EXPECT_EQ(outcome_of(bf16_product(), kByTorch).kind, Kind::kRejected);
  EXPECT_EQ(report.built, 0u);
}

bool gone_soon(pid_t pid) {
  const fs::path stat = "/proc/" + std::to_string(pid) + "/stat";
  for (int i = 0; i < 500; ++i) {
    if (!fs::exists(stat)) return true;
    const std::string text = read_text(stat);
    if (text.find(") Z") != std::string::npos || text.find(") X") != std::string::npos) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

TEST_F(FuriosaTorchTest, LimitsEndIt) {
  misbehave("hang");
  settings.seconds_limit = 8;
  EXPECT_EQ(outcome_of(bf16_product(), kByTorch).kind, Kind::kTimedOut);
  const std::string line = torch_calls();
  ASSERT_NE(line.find("pid "), std::string::npos) << "it had not begun";
  EXPECT_TRUE(gone_soon(std::atoi(line.c_str() + line.find("pid ") + 4)));
  misbehave("memory");
  settings.seconds_limit = 120;
  settings.memory_limit_bytes = int64_t{512} << 20;
  EXPECT_EQ(outcome_of(bf16_product(32), kByTorch).kind, Kind::kOutOfMemory);
}

// ---- on a card
// -----------------------------------------------------------------------------------

TEST_F(FuriosaTorchTest, RunsBesidePartsOfTheOtherCompiler) {
  const Graph part = bf16_product();
  const auto device = open_furiosa_device("auto", {}).take();
  const Inputs values = random_inputs({"product", "", part}, 3);
  const auto x = device->adopt(values.at("i0")).take(), w = device->adopt(values.at("i1")).take();
  const auto y = device->allocate(16 * 32 * 2).take();
  const auto result = [&](const Blob& blob) {
    const auto executable = device->load(blob, part).take();
    Buffer* const inputs[] = {x.get(), w.get()};
    Buffer* const outputs[] = {y.get()};
    const auto error = device->wait(device->submit(*executable, inputs, outputs).take());
    EXPECT_FALSE(error.has_value()) << error->text();
    std::vector<std::byte> bytes(y->bytes());
    device->download(bytes, *y);
    return bytes;
  };
  const Blob serialized = make_furiosa_entry()->compile(part, with({{"compiler", "torch"}})).take();
  EXPECT_EQ(result(serialized), result(fake_blob(part)));
}

TEST_F(FuriosaTorchTest, TheNativeWorkerRefusesItsCode) {
  cards.variables.set("NPU_LORA_FURIOSA_WORKER", "native");
  const Blob serialized = make_furiosa_entry()->compile(bf16_product(), kByTorch).take();
  const auto loaded = open_furiosa_device("auto", {}).take()->load(serialized, bf16_product());
  ASSERT_FALSE(loaded.ok());
  expect_says(loaded.error(), ErrorKind::kBadInput, "only furiosa.torch loads that");
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  if (const auto code = npu::testing_fakes::run_if_child(argc, argv)) return *code;
  if (const auto code = npu::run_if_device_worker(argc, argv)) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
