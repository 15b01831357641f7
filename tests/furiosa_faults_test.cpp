// What goes wrong with RNGD cards and their runtimes, over the stand-ins: each fault is survived,
// or ends in an error of the right kind that says what happened.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "backend/furiosa_device.h"
#include "backend/furiosa_session.h"
#include "backend/furiosa_setup.h"
#include "backend/sim_profile.h"
#include "compile_fakes.h"
#include "furiosa_cards.h"
#include "ops/ops.h"

namespace npu {
namespace {

constexpr const char* kAgain = "a resumed run continues from the last checkpoint";

void expect_says(const Error& error, ErrorKind kind, const std::vector<std::string>& words) {
  EXPECT_EQ(error.kind, kind) << error.text();
  for (const std::string& word : words) {
    EXPECT_NE(error.text().find(word), std::string::npos) << error.text() << "\nlacks: " << word;
  }
}

template <class T>
Error error_of(const Result<T>& result) {
  EXPECT_FALSE(result.ok());
  return result.ok() ? Error{} : result.error();
}

Graph part_named(const std::string& input) {
  Builder b("part");
  const Value x = b.input(input, {DType::kF32, {16}});
  b.output("y", ops::add(x, x));
  b.output("z", ops::mul(x, x));
  return std::move(b).build();
}

class Faults : public testing::TestWithParam<FakeRuntime> {
 protected:
  Faults() : cards(GetParam()) {}

  std::unique_ptr<Device> open(const std::string& which = "auto") {
    return open_furiosa_device(which, {}).take();
  }
  // With limits of their own, where a test has to wait for them.
  Result<std::unique_ptr<Device>> open_limited(const furiosa::WorkerLimits& limits) {
    return furiosa::open_device({{0}, furiosa::worker_program().take(), limits});
  }
  std::unique_ptr<Executable> load(Device& device, const std::string& input = "x") {
    return device.load(fake_blob(part_named(input)), part_named(input)).take();
  }
  static Error load_error(Device& device, const std::string& input) {
    return error_of(device.load(fake_blob(part_named(input)), part_named(input)));
  }

  // One call on threes; nothing when its outputs are what they should be.
  static std::optional<Error> run(Device& device, Executable& executable) {
    const auto x = device.adopt(Tensor::from_f32({16}, std::vector<float>(16, 3)));
    if (!x) return x.error();
    const auto y = device.allocate(64), z = device.allocate(64);
    if (!y) return y.error();
    if (!z) return z.error();
    Buffer* const inputs[] = {x.value().get()};
    Buffer* const outputs[] = {y.value().get(), z.value().get()};
    const auto ticket = device.submit(executable, inputs, outputs);
    if (!ticket) return ticket.error();
    if (auto error = device.wait(ticket.value())) return error;
    EXPECT_EQ(last_value(device, *y.value()), 6);
    EXPECT_EQ(last_value(device, *z.value()), 9);
    return std::nullopt;
  }
  static float last_value(Device& device, Buffer& buffer) {
    float values[16];
    device.download(std::as_writable_bytes(std::span(values)), buffer);
    return values[15];
  }
  // A call of a part fails and takes the device with it.
  void expect_lost(const std::vector<std::string>& words,
                   const furiosa::WorkerLimits& limits = {}) {
    const auto device = open_limited(limits).take();
    const auto executable = load(*device);
    EXPECT_FALSE(device->lost());
    const auto error = run(*device, *executable);
    ASSERT_TRUE(error.has_value());
    expect_says(*error, ErrorKind::kRetriable, {"furiosa:0: the device is lost", kAgain});
    expect_says(*error, ErrorKind::kRetriable, words);
    EXPECT_TRUE(device->lost());
    // Everything after it says the same, and gives nothing that could be used.
    expect_says(error_of(device->allocate(4)), ErrorKind::kRetriable, words);
    expect_says(load_error(*device, "x"), ErrorKind::kRetriable, words);
  }

  FakeCards cards;
};
INSTANTIATE_TEST_SUITE_P(Both, Faults, testing::Values(FakeRuntime::kNative, FakeRuntime::kPython),
                         [](const auto& test) { return runtime_name(test.param); });

TEST_P(Faults, NoneIsPlanted) {
  const auto device = open();
  const auto executable = load(*device);
  for (int i = 0; i < 3; ++i) {
    const auto error = run(*device, *executable);
    EXPECT_FALSE(error.has_value()) << error->text();
  }
}

// ---- opening
// -------------------------------------------------------------------------------------

TEST_P(Faults, ABusyCardIsPassedOver) {
  const auto first = open(), second = open();
  const auto executable = load(*second);
  EXPECT_FALSE(run(*second, *executable).has_value());
  expect_says(error_of(open_furiosa_device("auto", {})), ErrorKind::kRetriable,
              {"furiosa: no card can be opened", "furiosa:0: is busy", "furiosa:1: is busy",
               "end the program that holds it"});
  expect_says(error_of(open_furiosa_device("1", {})), ErrorKind::kRetriable,
              {"furiosa:1: is busy"});
}

TEST_P(Faults, AClosedCardIsFreeAgain) {
  for (int i = 0; i < 3; ++i) {
    const auto device = open("0");
    EXPECT_FALSE(device->lost());
  }
}

TEST_P(Faults, ASlowStartIsWaitedFor) {
  cards.misbehave("slow_open");
  const auto device = open();
  const auto executable = load(*device);
  EXPECT_FALSE(run(*device, *executable).has_value());
}

TEST_P(Faults, AStartThatHangsEnds) {
  cards.misbehave("hang_open");
  furiosa::WorkerLimits limits;
  limits.open_seconds = 1.5;
  expect_says(error_of(open_limited(limits)), ErrorKind::kRetriable,
              {"no card can be opened", "opening the card took over 1.5 s"});
}

TEST_P(Faults, AMissingRuntimeIsAnErrorWithItsName) {
  cards.variables.set("NPU_LORA_FURIOSA_RUNTIME", NPU_FAKE_RUNTIME_LACKING);
  cards.variables.set("PYTHONPATH", cards.folder.path().string());
  const Error error = error_of(open_furiosa_device("auto", {}));
  if (GetParam() == FakeRuntime::kNative) {
    expect_says(error, ErrorKind::kRetriable, {"exited with 3", "lacks furiosa_runtime_init"});
  } else {
    expect_says(error, ErrorKind::kBadInput, {"the worker lacks something", "No module named"});
  }
}

// ---- loading
// -------------------------------------------------------------------------------------

TEST_P(Faults, ARefusedPartIsTheHosts) {
  cards.misbehave("refuse_load");
  cards.variables.set("FAKE_RNGD_ONLY", "\"bad\"");
  const auto device = open();
  const auto executable = load(*device);
  expect_says(load_error(*device, "bad"), ErrorKind::kBadInput,
              {"furiosa:0: the runtime refuses the compiled part"});
  EXPECT_FALSE(run(*device, *executable).has_value());
}

// The loader takes the whole process with it: the part is refused, all others are loaded anew.
TEST_P(Faults, AnAbortInLoadIsTheParts) {
  cards.misbehave("abort_load");
  cards.variables.set("FAKE_RNGD_ONLY", "\"bad\"");
  const auto device = open();
  const auto first = load(*device, "x");
  const auto zeros = device->allocate(64).take();
  for (int i = 0; i < 2; ++i) {
    expect_says(load_error(*device, "bad"), ErrorKind::kBadInput,
                {"the runtime dies of the compiled part", "killed by SIGABRT", "loading a part",
                 "panic in a function that cannot unwind", "the part runs on the host"});
    EXPECT_FALSE(device->lost());
  }
  const auto second = load(*device, "y0");
  EXPECT_FALSE(run(*device, *first).has_value());
  EXPECT_FALSE(run(*device, *second).has_value());
  EXPECT_EQ(last_value(*device, *zeros), 0);
}

// What only the card had can't be made again: no pretending.
TEST_P(Faults, AnAbortInLoadWithDataOnTheCardLosesTheDevice) {
  cards.misbehave("abort_load");
  cards.variables.set("FAKE_RNGD_ONLY", "\"bad\"");
  const auto device = open();
  const auto x = device->adopt(Tensor::from_f32({16}, std::vector<float>(16, 3))).take();
  expect_says(load_error(*device, "bad"), ErrorKind::kRetriable,
              {"the device is lost", "killed by SIGABRT", kAgain});
  EXPECT_TRUE(device->lost());
  EXPECT_NE(last_value(*device, *x), 3) << "what is downloaded from a lost device is NaN";
}

TEST_P(Faults, AHangInLoadIsTheParts) {
  cards.misbehave("hang_load");
  cards.variables.set("FAKE_RNGD_ONLY", "\"bad\"");
  furiosa::WorkerLimits limits;
  limits.load_seconds = 2;
  const auto device = open_limited(limits).take();
  const auto executable = load(*device);
  expect_says(load_error(*device, "bad"), ErrorKind::kBadInput,
              {"the runtime dies of the compiled part", "loading a part took over 2 s"});
  EXPECT_FALSE(run(*device, *executable).has_value());
}

TEST_P(Faults, DamagedBlobsAreRefused) {
  const auto device = open();
  const Graph part = part_named("x");
  Blob blob = fake_blob(part);
  blob[blob.size() / 2] ^= 1;
  expect_says(error_of(device->load(blob, part)), ErrorKind::kBadInput,
              {"furiosa blob", "clear the compile cache"});
  EXPECT_TRUE(device->load(fake_blob(part), part).ok());
}

// ---- calls
// ---------------------------------------------------------------------------------------

TEST_P(Faults, AFailedCallLeavesTheCardUsable) {
  cards.misbehave("fail_run");
  cards.variables.set("FAKE_RNGD_CALL", "2");
  const auto device = open();
  const auto executable = load(*device);
  EXPECT_FALSE(run(*device, *executable).has_value());
  const auto error = run(*device, *executable);
  ASSERT_TRUE(error.has_value());
  expect_says(*error, ErrorKind::kRetriable, {"furiosa:0: the call failed", "-5"});
  EXPECT_FALSE(device->lost());
  EXPECT_FALSE(run(*device, *executable).has_value());
}

TEST_P(Faults, APoisonedRuntimeIsLost) {
  cards.misbehave("poison");
  expect_lost({"-110"});
}

TEST_P(Faults, AHangInACallIsLost) {
  cards.misbehave("hang_run");
  furiosa::WorkerLimits limits;
  limits.call_seconds = 2;
  expect_lost({"a call took over 2 s"}, limits);
}

// Not only the call: the worker gives no sign of life.
TEST_P(Faults, AFrozenWorkerIsLost) {
  cards.misbehave("freeze_run");
  furiosa::WorkerLimits limits;
  limits.silence_seconds = 2;
  expect_lost({"a call without a sign of life for 2 s"}, limits);
}

// The worker's beats tell a call that lasts from one that hangs.
TEST_P(Faults, ASlowCallIsWaitedFor) {
  cards.misbehave("slow_run");
  furiosa::WorkerLimits limits;
  limits.silence_seconds = 1.2;
  const auto device = open_limited(limits).take();
  const auto executable = load(*device);
  EXPECT_FALSE(run(*device, *executable).has_value());
}

TEST_P(Faults, AKilledWorkerIsLost) {
  cards.misbehave("kill_run");
  expect_lost({"killed by SIGKILL in a call"});
}

TEST_P(Faults, AnAbortInACallIsLost) {
  cards.misbehave("abort_run");
  expect_lost({"killed by SIGABRT in a call", "panic in a function that cannot unwind"});
}

TEST_P(Faults, NonsenseFromTheWorkerIsLost) {
  cards.misbehave("garbage_run");
  expect_lost({"its answer is no answer"});
}

TEST_P(Faults, NoiseOfTheRuntimeHarmsNothing) {
  cards.misbehave("noisy_run");
  const auto device = open();
  const auto executable = load(*device);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(run(*device, *executable).has_value());
}

TEST_P(Faults, CallsOnTheirWayFailWithTheDevice) {
  cards.misbehave("kill_run");
  cards.variables.set("FAKE_RNGD_CALL", "2");
  const auto device = open();
  const auto executable = load(*device);
  const auto x = device->adopt(Tensor::from_f32({16}, std::vector<float>(16, 3))).take();
  const auto y = device->allocate(64).take(), z = device->allocate(64).take();
  Buffer* const inputs[] = {x.get()};
  Buffer* const outputs[] = {y.get(), z.get()};
  std::vector<Device::Ticket> tickets;
  for (int i = 0; i < 4; ++i) {
    const auto ticket = device->submit(*executable, inputs, outputs);
    if (ticket) tickets.push_back(ticket.value());
  }
  ASSERT_FALSE(tickets.empty());
  EXPECT_FALSE(device->wait(tickets[0]).has_value()) << "it was done before";
  for (size_t i = 1; i < tickets.size(); ++i) {
    const auto error = device->wait(tickets[i]);
    ASSERT_TRUE(error.has_value());
    expect_says(*error, ErrorKind::kRetriable, {"killed by SIGKILL"});
  }
  expect_says(error_of(device->submit(*executable, inputs, outputs)), ErrorKind::kRetriable,
              {"the device is lost"});
}

TEST_P(Faults, FullMemoryIsAnErrorAndNoMore) {
  cards.variables.set("FAKE_RNGD_MEMORY", "100000");
  const auto device = open();
  if (GetParam() == FakeRuntime::kNative) {
    expect_says(error_of(device->allocate(200000)), ErrorKind::kRetriable,
                {"device memory is exhausted", "200000 bytes wanted", "--batch"});
  } else {
    // Python's tensors come to the card with their first use.
    Builder b("large");
    const Value x = b.input("x", {DType::kF32, {50000}});
    b.output("y", ops::add(x, x));
    const Graph large = std::move(b).build();
    const auto executable = device->load(fake_blob(large), large).take();
    const auto buffer = device->allocate(200000).take();
    Buffer* const both[] = {buffer.get()};
    const auto error = device->wait(device->submit(*executable, both, both).take());
    ASSERT_TRUE(error.has_value());
    expect_says(*error, ErrorKind::kRetriable, {"device memory is exhausted", "200000 bytes"});
  }
  EXPECT_FALSE(device->lost());
  const auto executable = load(*device);
  EXPECT_FALSE(run(*device, *executable).has_value());
}

class PythonFaults : public Faults {};
INSTANTIATE_TEST_SUITE_P(Only, PythonFaults, testing::Values(FakeRuntime::kPython),
                         [](const auto& test) { return runtime_name(test.param); });

// The C library knows no shapes; furiosa.torch does.
TEST_P(PythonFaults, OtherPortsAreRefused) {
  cards.misbehave("wrong_shape");
  const auto device = open();
  expect_says(load_error(*device, "x"), ErrorKind::kBadInput,
              {"the part does not fit its graph", "inputs of [2, 8, 3] torch.float32, not [16]"});
  EXPECT_FALSE(device->lost());
}

TEST_P(PythonFaults, OtherOutputsAreTheParts) {
  for (const auto& [mode, words] : {std::pair("few_outputs", "1 outputs, not 2"),
                                    std::pair("wrong_result", "an output of [8] torch.float32")}) {
    cards.misbehave(mode);
    const auto device = open();
    const auto executable = load(*device);
    const auto error = run(*device, *executable);
    ASSERT_TRUE(error.has_value());
    expect_says(*error, ErrorKind::kBadInput, {"the part gave other outputs than it has", words});
    EXPECT_FALSE(device->lost());
  }
}

TEST_P(PythonFaults, NoMemoryForAPartIsNotThePartsFault) {
  cards.misbehave("memory_load");
  const auto device = open();
  expect_says(load_error(*device, "x"), ErrorKind::kRetriable, {"device memory is exhausted"});
}

// ---- whole graphs
// ----------------------------------------------------------------------------------

std::map<std::string, Tensor> blocks_on(Backend& backend, int64_t contractions = 2) {
  std::vector<NamedGraph> graphs;
  graphs.push_back({"fwd", testing_fakes::blocks_graph()});
  const auto runtime =
      testing_fakes::make_runtime(std::move(graphs), backend, testing_fakes::cut_to(contractions));
  return testing_fakes::run_graph(*runtime, "blocks");
}

void expect_equal(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    EXPECT_EQ(difference(tensor, b.at(name)).max_abs, 0) << name;
  }
}

TEST_P(Faults, ARuntimeRunsItsPartsOnACard) {
  const auto backend = make_card_backend(), simulator = make_backend("sim:furiosa").take();
  expect_equal(blocks_on(*backend), blocks_on(*simulator));
}

// A part that kills the worker in load runs on the host, the rest on the card.
TEST_P(Faults, ARuntimeTakesAPartThatKillsTheWorkerToTheHost) {
  cards.misbehave("abort_load");
  cards.variables.set("FAKE_RNGD_ONLY", "exp(");
  const auto backend = make_card_backend();
  std::vector<NamedGraph> graphs;
  graphs.push_back({"fwd", testing_fakes::blocks_graph()});
  const auto runtime =
      testing_fakes::make_runtime(std::move(graphs), *backend, testing_fakes::cut_to(1));
  int on_host = 0, on_card = 0;
  for (const PlannedPart& part : runtime->plan().graph("blocks").parts) {
    ++(part.on_host ? on_host : on_card);
    if (!part.on_host) continue;
    EXPECT_NE(part.host_reason.find("the runtime dies of the compiled part"), std::string::npos)
        << part.host_reason;
  }
  EXPECT_GT(on_host, 0);
  EXPECT_GT(on_card, 0);
  // The same chip without that part.
  const fs::path profile = cards.folder.path() / "chip.yaml";
  publish_text(profile, std::string(*sim::builtin_profile("furiosa")) +
                            "faults:\n  - {when: load, kind: reject, part: exp(}\n");
  const auto simulator = make_backend("sim:" + profile.string()).take();
  expect_equal(testing_fakes::run_graph(*runtime, "blocks"), blocks_on(*simulator, 1));
}

// ---- which cards
// -----------------------------------------------------------------------------------

using Numbers = std::vector<int>;

TEST(WhichCards, TheEnvironmentNamesThem) {
  FakeCards cards(FakeRuntime::kNative);
  cards.add_card(12);
  EXPECT_EQ(furiosa::cards_to_try("auto").take(), (Numbers{0, 1, 12}));
  EXPECT_EQ(furiosa::cards_to_try("12").take(), Numbers{12});
  const fs::path file = cards.folder.path() / "assigned";
  publish_text(file, "npu1,npu0\n");
  cards.variables.set("NPU_LORA_RNGD_FILE", file.string());
  EXPECT_EQ(furiosa::cards_to_try("auto").take(), (Numbers{1, 0}));
  cards.variables.set("NPU_LORA_RNGD", "12, 0");
  EXPECT_EQ(furiosa::cards_to_try("auto").take(), (Numbers{12, 0})) << "it comes first";
  EXPECT_EQ(furiosa::cards_to_try("1").take(), Numbers{1}) << "a card that is asked for by number";
}

TEST(WhichCards, NonsenseIsNamed) {
  FakeCards cards(FakeRuntime::kNative);
  cards.variables.set("NPU_LORA_RNGD", "0,x");
  expect_says(error_of(furiosa::cards_to_try("auto")), ErrorKind::kUsage,
              {"NPU_LORA_RNGD: must list cards by number", "'x'"});
  cards.variables.set("NPU_LORA_RNGD", "0,3");
  expect_says(error_of(furiosa::cards_to_try("auto")), ErrorKind::kBadInput,
              {"NPU_LORA_RNGD: has no device node", "card 3"});
  cards.variables.set("NPU_LORA_RNGD", " ,");
  expect_says(error_of(furiosa::cards_to_try("auto")), ErrorKind::kUsage, {"names no card"});
  cards.variables.unset("NPU_LORA_RNGD");
  cards.variables.set("NPU_LORA_RNGD_FILE", "/nonexistent/file");
  expect_says(error_of(furiosa::cards_to_try("auto")), ErrorKind::kBadInput, {"/nonexistent/file"});
  expect_says(error_of(furiosa::cards_to_try("7")), ErrorKind::kBadInput,
              {"furiosa:7: has no device node"});
}

TEST(Probe, SaysWhatIsMissing) {
  FakeCards cards(FakeRuntime::kNative);
  EXPECT_FALSE(probe_furiosa_device().has_value());
  cards.variables.set("NPU_LORA_FURIOSA_RUNTIME", NPU_FAKE_RUNTIME_LACKING);
  expect_says(probe_furiosa_device().value(), ErrorKind::kBadInput,
              {"the runtime can't be loaded", "lacks furiosa_runtime_init"});
  cards.variables.set("NPU_LORA_FURIOSA_RUNTIME", "/nonexistent/libdevice_runtime.so");
  expect_says(probe_furiosa_device().value(), ErrorKind::kBadInput, {"NPU_LORA_FURIOSA_RUNTIME"});
  cards.variables.set("NPU_LORA_FURIOSA_WORKER", "both");
  expect_says(probe_furiosa_device().value(), ErrorKind::kUsage, {"must be native or python"});
  cards.variables.set("NPU_LORA_RNGD_NODES", cards.folder.path().string());
  expect_says(probe_furiosa_device().value(), ErrorKind::kBadInput, {"has no device node"});
}

// The vendor's own test says yes on a machine without a card; the driver's library does not.
TEST(Probe, PythonNeedsTheDriversLibrary) {
  FakeCards cards(FakeRuntime::kPython);
  expect_says(probe_furiosa_device().value(), ErrorKind::kBadInput,
              {"the runtime can't be loaded", "librenegade.so"});
  fs::copy(NPU_FAKE_RUNTIME_LACKING, cards.folder.path() / "librenegade.so");
  cards.variables.set("LD_LIBRARY_PATH", cards.folder.path().string());
  const auto problem = probe_furiosa_device();
  EXPECT_FALSE(problem.has_value()) << problem->text();
  cards.variables.set("PYTHONPATH", cards.folder.path().string());
  expect_says(probe_furiosa_device().value(), ErrorKind::kBadInput, {"is not installed here"});
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  if (const auto code = npu::run_if_device_worker(argc, argv)) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
