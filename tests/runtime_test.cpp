// Running plans: cut and uncut, on the device and the host, with memory shared and hidden.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "compile/arena.h"
#include "compile/plan.h"
#include "compile_fakes.h"
#include "ops/ops.h"
#include "ops/table.h"

namespace npu {
namespace {

using namespace testing_fakes;
using Results = std::map<std::string, Tensor>;

void expect_same_bits(const Results& a, const Results& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, value] : a) {
    ASSERT_EQ(value.bytes(), b.at(name).bytes());
    EXPECT_EQ(std::memcmp(value.data(), b.at(name).data(), value.bytes()), 0) << name;
    EXPECT_GT(difference(value, Tensor(value.dtype(), value.shape())).max_abs, 0) << name;
  }
}

size_t on_host(const Runtime& runtime) {
  size_t count = 0;
  for (const PlannedGraph& graph : runtime.plan().graphs) {
    for (const PlannedPart& part : graph.parts) count += part.on_host;
  }
  return count;
}

// Until a run fails.
void while_running(Runtime& runtime, const std::string& graph) {
  for (int i = 0; i < 10; ++i) run_graph(runtime, graph);
}

TEST(Arena, ValuesInUseTogetherDontOverlap) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> values(random() % 20);
    for (Lifetime& v : values) {
      v.bytes = random() % 50000;
      v.first = static_cast<int>(random() % 10);
      v.last = v.first + static_cast<int>(random() % 4);
    }
    const ArenaLayout layout = plan_arena(values);
    size_t sum = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      sum += (values[i].bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
      EXPECT_EQ(layout.offsets[i] % kBufferAlignment, 0u);
      EXPECT_LE(layout.offsets[i] + values[i].bytes, layout.bytes);
      for (size_t j = 0; j < i; ++j) {
        const bool together =
            values[i].first <= values[j].last && values[j].first <= values[i].last;
        const bool overlap = layout.offsets[i] < layout.offsets[j] + values[j].bytes &&
                             layout.offsets[j] < layout.offsets[i] + values[i].bytes;
        EXPECT_FALSE(together && overlap);
      }
    }
    EXPECT_LE(layout.bytes, sum);
  }
  EXPECT_EQ(plan_arena({}).bytes, 0u);
}

TEST(Arena, ReusesMemory) {
  // A chain: each value meets only its neighbours, so two places are enough.
  std::vector<Lifetime> chain;
  for (int i = 0; i < 10; ++i) chain.push_back({kBufferAlignment, i, i + 1});
  EXPECT_EQ(plan_arena(chain).bytes, 2 * kBufferAlignment);
}

TEST(Runtime, PartsEqualTheWholeBitForBit) {
  const auto backend = make_backend("cpu:reference").take();
  auto whole = make_runtime({{"fwd", blocks_graph()}}, *backend, cut_to(0));
  ASSERT_EQ(whole->plan().graph("blocks").parts.size(), 1u);
  const Results expected = run_graph(*whole, "blocks");
  for (const int64_t contractions : {1, 2, 3}) {
    auto cut = make_runtime({{"fwd", blocks_graph()}}, *backend, cut_to(contractions));
    EXPECT_GT(cut->plan().graph("blocks").parts.size(), 1u);
    expect_same_bits(run_graph(*cut, "blocks"), expected);
    expect_same_bits(run_graph(*cut, "blocks"), expected);  // temporaries used again
  }
  PlanOptions tiny;
  tiny.limits.nodes = 1;
  expect_same_bits(run_graph(*make_runtime({{"fwd", blocks_graph()}}, *backend, tiny), "blocks"),
                   expected);
  // And the meaning is the interpreter's.
  const Graph& graph = whole->plan().graph("blocks").graph;
  EXPECT_EQ(graph.outputs().size(), 2u);
}

TEST(Runtime, GraphsShareTemporaryMemory) {
  const auto backend = make_backend("cpu:reference").take();
  auto runtime = make_runtime({{"fwd", blocks_graph("a")}, {"bwd", blocks_graph("b", 24)}},
                              *backend, cut_to(1));
  const Results a = run_graph(*runtime, "a"), b = run_graph(*runtime, "b");
  expect_same_bits(run_graph(*runtime, "a"), a);
  expect_same_bits(run_graph(*runtime, "b"), b);
}

// The same parts with the same kernels, wherever they run and whatever copies that takes.
TEST(Runtime, HostFallbackIsIdentical) {
  FakeOptions plain;
  plain.inner = "cpu";
  FakeBackend backend(plain);
  auto reference = make_runtime({{"fwd", blocks_graph()}}, backend, cut_to(1));
  EXPECT_EQ(on_host(*reference), 0u);
  const Results expected = run_graph(*reference, "blocks");
  const Results doubled = run_graph(*reference, "blocks", 2);
  for (const bool hidden : {false, true}) {
    FakeOptions partly = plain;
    partly.exp_unsupported = true;
    partly.hidden_memory = hidden;
    FakeBackend other(partly);
    auto mixed = make_runtime({{"fwd", blocks_graph()}}, other, cut_to(1));
    EXPECT_EQ(on_host(*mixed), 1u);
    expect_same_bits(run_graph(*mixed, "blocks"), expected);
    expect_same_bits(run_graph(*mixed, "blocks", 2), doubled);  // no stale copies
    expect_same_bits(run_graph(*mixed, "blocks"), expected);
    EXPECT_EQ(mixed->timing().transfer_seconds > 0, true);
  }
}

TEST(Runtime, EachPartOnTheHostInTurn) {
  FakeOptions options;
  options.inner = "cpu";
  options.hidden_memory = true;
  FakeBackend backend(options);
  const TempDir cache;
  CompileSettings settings;
  settings.cache_dir = cache.path();
  Plan plan = make_plan({{"fwd", blocks_graph()}}, backend, cut_to(1));
  compile_plan(plan, backend, {}, settings);
  const Results expected = run_graph(*Runtime::create(plan, backend, {}).take(), "blocks");
  const size_t parts = plan.graphs[0].parts.size();
  for (size_t mask = 1; mask < (size_t{1} << parts); mask += 3) {
    Plan mixed = plan;
    for (size_t i = 0; i < parts; ++i) mixed.graphs[0].parts[i].on_host = (mask >> i) & 1;
    expect_same_bits(run_graph(*Runtime::create(mixed, backend, {}).take(), "blocks"), expected);
  }
}

TEST(Runtime, WholeGraphOnTheHost) {
  const auto backend = make_backend("cpu").take();
  auto device = make_runtime({{"fwd", blocks_graph()}}, *backend, cut_to(0));
  PlanOptions options;
  options.host_groups = {"fwd"};
  auto host = make_runtime({{"fwd", blocks_graph()}}, *backend, options);
  EXPECT_EQ(on_host(*host), 1u);
  expect_same_bits(run_graph(*host, "blocks"), run_graph(*device, "blocks"));
  EXPECT_EQ(host->timing().launches, 1);
  EXPECT_GT(host->timing().host_seconds, 0);
  host->reset_timing();
  EXPECT_EQ(host->timing().launches, 0);
  EXPECT_EQ(host->timing().host_seconds, 0);
}

TEST(Runtime, TimesDeviceCalls) {
  const auto backend = make_backend("cpu:reference").take();
  auto runtime = make_runtime({{"fwd", blocks_graph()}}, *backend, cut_to(1));
  run_graph(*runtime, "blocks");
  EXPECT_EQ(runtime->timing().launches, 6);
  EXPECT_GT(runtime->timing().device_seconds, 0);
  EXPECT_EQ(runtime->timing().host_seconds, 0);
}

// y = x·w + b·b with w and b in one buffer, and an output that is an input.
TEST(Runtime, SharedInputsAndPassedThroughValues) {
  Builder b("shared");
  const TensorType type{DType::kF32, {4, 4}};
  const Value x = b.input("x", type), w = b.input("w", type), c = b.input("c", type);
  b.output("y", ops::add(ops::matmul(x, w), ops::matmul(c, c)));
  b.output("same", x);
  const Graph graph = std::move(b).build();
  const auto backend = make_backend("cpu:reference").take();
  for (const int64_t contractions : {0, 1}) {
    auto runtime = make_runtime({{"fwd", graph}}, *backend, cut_to(contractions));
    Device& device = runtime->device();
    const auto x_buffer = device.allocate(64).take(), shared = device.allocate(100).take();
    const auto y_buffer = device.allocate(64).take(), same = device.allocate(64).take();
    std::vector<float> ones(16, 1.0f), twos(16, 2.0f), result(16), copy(16);
    device.upload(*x_buffer, std::as_bytes(std::span(ones)));
    device.upload(*shared, std::as_bytes(std::span(twos)));
    const Runtime::Bindings bindings = {{"x", x_buffer.get()}, {"w", shared.get()},
                                        {"c", shared.get()},   {"y", y_buffer.get()},
                                        {"same", same.get()},  {"unknown", shared.get()}};
    ASSERT_FALSE(runtime->run("shared", bindings));
    device.download(std::as_writable_bytes(std::span(result)), *y_buffer);
    device.download(std::as_writable_bytes(std::span(copy)), *same);
    EXPECT_EQ(result, std::vector<float>(16, 8.0f + 16.0f));
    EXPECT_EQ(copy, ones);
  }
}

TEST(Runtime, MeaningIsTheInterpreters) {
  const auto backend = make_backend("cpu:reference").take();
  auto runtime = make_runtime({{"fwd", blocks_graph()}}, *backend, cut_to(1));
  const Results results = run_graph(*runtime, "blocks");
  const Graph graph = blocks_graph();
  std::map<std::string, Tensor> inputs;
  int seed = 0;
  for (const NodeId id : runtime->plan().graph("blocks").graph.inputs()) {
    const Node& input = runtime->plan().graph("blocks").graph.node(id);
    Tensor values(input.type.dtype, input.type.shape);
    for (int64_t i = 0; i < values.size(); ++i) {
      set_element(values, i, 0.3 * std::sin(static_cast<double>(1 + i * 7 + ++seed)));
    }
    inputs[input.name] = values;
  }
  const std::vector<Tensor> expected = interpret(graph, inputs);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT(difference(results.at(graph.outputs()[i].name), expected[i]).rel_l2, 1e-6);
  }
}

TEST(Runtime, WrongBindingsAreBugs) {
  const auto backend = make_backend("cpu:reference").take();
  auto runtime = make_runtime({{"fwd", blocks_graph()}}, *backend, cut_to(0));
  EXPECT_THROW(runtime->run("absent", {}), InternalError);
  EXPECT_THROW(runtime->run("blocks", {}), InternalError);
  const auto small = runtime->device().allocate(4).take();
  EXPECT_THROW(runtime->run("blocks", {{"x", small.get()},
                                       {"w1", small.get()},
                                       {"w2", small.get()},
                                       {"y", small.get()},
                                       {"norm", small.get()}}),
               InternalError);
}

TEST(Runtime, DeviceFailuresAreErrors) {
  for (const bool hidden : {false, true}) {
    FakeOptions options;
    options.fail_submit = 3;
    options.hidden_memory = hidden;
    FakeBackend backend(options);
    auto runtime = make_runtime({{"fwd", blocks_graph()}}, backend, cut_to(1));
    try {
      run_graph(*runtime, "blocks");
      FAIL();
    } catch (const UserError& e) {
      EXPECT_EQ(e.error().kind, ErrorKind::kRetriable);
      EXPECT_EQ(e.error().text(), "blocks.3 on fake:ok: device: was lost");
    }
    EXPECT_NO_THROW(run_graph(*runtime, "blocks"));  // the next call finds a clean state
  }
}

TEST(Runtime, RefusedLoadNamesThePart) {
  FakeOptions options;
  options.refuse_load = "blob refused";
  FakeBackend backend(options);
  const TempDir cache;
  CompileSettings settings;
  settings.cache_dir = cache.path();
  Plan plan = make_plan({{"fwd", blocks_graph()}}, backend, cut_to(1));
  compile_plan(plan, backend, {}, settings);
  const auto runtime = Runtime::create(plan, backend, {});
  ASSERT_FALSE(runtime.ok());
  EXPECT_EQ(runtime.error().text(), "blocks.0 on fake:ok: device: blob refused");
}

// The device is well but refuses one part: that part runs on the host, wherever it is used.
TEST(Runtime, PartRefusedAtLoadGoesToTheHost) {
  FakeOptions options;
  options.refuse_exp = true;
  FakeBackend backend(options);
  auto runtime =
      make_runtime({{"fwd", blocks_graph("a")}, {"bwd", blocks_graph("b")}}, backend, cut_to(1));
  EXPECT_EQ(on_host(*runtime), 2u);
  for (const PlannedPart& part : runtime->plan().graph("b").parts) {
    if (!part.on_host) continue;
    EXPECT_EQ(part.host_reason, "refused at load: device: will not run an exp");
  }
  FakeBackend whole({});
  auto reference = make_runtime({{"fwd", blocks_graph("b")}}, whole, cut_to(0));
  EXPECT_LT(difference(run_graph(*runtime, "b")["y"], run_graph(*reference, "b")["y"]).rel_l2,
            1e-5);
}

// Groups move to the host and back between runs; what a failed run says decides which.
TEST(Runtime, GroupsMoveBetweenDeviceAndHost) {
  for (const bool hidden : {false, true}) {
    FakeOptions options;
    options.hidden_memory = hidden;
    options.fail_submit = 12;
    FakeBackend backend(options);
    auto runtime =
        make_runtime({{"fwd", blocks_graph("a")}, {"bwd", blocks_graph("b")}}, backend, cut_to(1));
    const Results on_device = run_graph(*runtime, "b");
    EXPECT_EQ(runtime->failed_group(), "");
    const size_t parts = runtime->plan().graph("b").parts.size();
    ASSERT_FALSE(runtime->place_group("bwd", true, "for a test"));
    EXPECT_EQ(on_host(*runtime), parts);
    EXPECT_EQ(runtime->plan().graph("b").parts[0].host_reason, "for a test");
    const Results moved = run_graph(*runtime, "b");
    EXPECT_LT(difference(moved.at("y"), on_device.at("y")).rel_l2, 1e-5);
    ASSERT_FALSE(runtime->place_group("bwd", false, ""));
    EXPECT_EQ(on_host(*runtime), 0u);
    EXPECT_EQ(runtime->plan().graph("b").parts[0].host_reason, "");
    expect_same_bits(run_graph(*runtime, "a"), on_device);
    EXPECT_THROW(while_running(*runtime, "b"), UserError);
    EXPECT_EQ(runtime->failed_group(), "bwd");
    ASSERT_FALSE(runtime->place_group(std::string(runtime->failed_group()), true, "lost"));
    expect_same_bits(run_graph(*runtime, "b"), moved);
  }
}

TEST(Runtime, UncompiledPlanIsABug) {
  FakeBackend backend({});
  EXPECT_THROW(
      Runtime::create(make_plan({{"fwd", blocks_graph()}}, backend, cut_to(1)), backend, {}),
      InternalError);
}

}  // namespace
}  // namespace npu
