// Simulated devices without children: what compilers refuse, and the device's ports, memory, clock
// and planted faults.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/sim_compile.h"
#include "backend/sim_device.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "ops/table.h"

namespace npu {
namespace {

using namespace sim;

Profile profile_of(const std::string& text) {
  return parse_profile("name: test\n" + text, "p.yaml").take();
}

// ---- compiling ---------------------------------------------------------------------------------

constexpr const char* kTwoInputs = R"(graph part
%0 = input "i0" : f32[4,4]
%1 = input "i1" : f32[4,4]
%2 = input "i2" : f32[4,4]
)";

Graph part_of(const std::string& nodes) {
  return parse_graph(std::string(kTwoInputs) + nodes, find_op, "part").take();
}

TEST(Rejections, AreFoundByPattern) {
  const Profile profile = profile_of(
      "reject:\n  - {pattern: neg -> add => matmul, reason: far}\n"
      "  - {pattern: neg -> add, reason: near}\n");
  const auto reason = [&](const std::string& nodes) {
    const Rejection* found = find_rejection(profile, part_of(nodes));
    return found == nullptr ? std::string() : found->reason;
  };
  const std::string neg_add = "%3 = neg(%0) : f32[4,4]\n%4 = add(%1, %3) : f32[4,4]\n";
  EXPECT_EQ(reason(neg_add + "output \"o\" = %4\n"), "near");
  EXPECT_EQ(reason(neg_add + "%5 = exp(%4) : f32[4,4]\n%6 = matmul(%5, %1) : f32[4,4]\n"
                             "output \"o\" = %6\n"),
            "far");
  // A matmul beside the sum is not behind it; neither is a sum of something made from the neg.
  EXPECT_EQ(reason(neg_add + "%5 = matmul(%0, %1) : f32[4,4]\noutput \"o\" = %4\n"
                             "output \"p\" = %5\n"),
            "near");
  EXPECT_EQ(reason("%3 = neg(%0) : f32[4,4]\n%4 = exp(%3) : f32[4,4]\n%5 = add(%1, %4) : f32[4,4]\n"
                   "%6 = matmul(%5, %3) : f32[4,4]\noutput \"o\" = %6\n"),
            "");
}

TEST(Rejections, ComeWithTheCompilersWords) {
  const auto rbln = make_backend("sim:rbln").take();
  const Result<Blob> blob =
      rbln->compile(part_of("%3 = neg(%0) : f32[4,4]\n%4 = add(%3, %1) : f32[4,4]\n"
                            "output \"o\" = %4\n"),
                    {});
  ASSERT_FALSE(blob.ok());
  EXPECT_NE(blob.error().text().find("DEVICE_GRAPH_CONVERSION"), std::string::npos);
  const auto furiosa = make_backend("sim:furiosa").take();
  const Result<Blob> padded = furiosa->compile(
      part_of("%3 = pad(%0) {high=[1,0], low=[0,0]} : f32[5,4]\noutput \"o\" = %3\n"), {});
  ASSERT_FALSE(padded.ok());
  EXPECT_NE(padded.error().text().find("constant_pad_nd"), std::string::npos);
}

TEST(Rejections, OpsAndTypesThatADeviceLacks) {
  const Profile profile = profile_of("ops: [exp, convert]\narithmetic: [f32]\n");
  Builder b("part");
  const Value x = b.input("x", {DType::kF32, {2}}), h = b.input("h", {DType::kF16, {2}});
  b.output("a", ops::exp(x));
  b.output("b", ops::exp(h));
  b.output("c", ops::neg(x));
  b.output("d", ops::convert(h, DType::kF32));
  const Graph graph = std::move(b).build();
  std::vector<std::string> reasons;
  for (size_t id = 0; id < graph.nodes().size(); ++id) {
    const auto reason = unsupported_node(profile, graph, static_cast<NodeId>(id));
    if (reason) reasons.push_back(*reason);
  }
  EXPECT_EQ(reasons,
            (std::vector<std::string>{"sim:test does not compute in f16", "sim:test has no neg"}));
}

TEST(Rejections, PartsBeyondALimitThatNobodyTold) {
  const Profile profile = profile_of("limits: {contractions: 1, known: false, beyond: reject}\n");
  const std::string one = "%3 = matmul(%0, %1) : f32[4,4]\n";
  EXPECT_TRUE(compile_part(profile, part_of(one + "output \"o\" = %3\n")).ok());
  const Result<Blob> two =
      compile_part(profile, part_of(one + "%4 = matmul(%3, %2) : f32[4,4]\noutput \"o\" = %4\n"));
  ASSERT_FALSE(two.ok());
  EXPECT_NE(two.error().text().find("2 matmuls, more than 1"), std::string::npos)
      << two.error().text();
}

// ---- the device --------------------------------------------------------------------------------

struct Opened {
  explicit Opened(const std::string& text)
      : profile(std::make_shared<const Profile>(profile_of(text))),
        device(open_device(profile, 1)) {}

  // Runs a part of which every input is named here; results by output.
  Result<std::vector<Tensor>> run(const Graph& part, const std::vector<Tensor>& inputs) {
    const Blob blob = compile_part(*profile, part).take();
    auto executable = device->load(blob, part);
    if (!executable) return executable.error();
    std::vector<std::shared_ptr<Buffer>> owned;
    std::vector<Buffer*> in, out;
    std::vector<Tensor> results;
    for (const Tensor& tensor : inputs) {
      owned.push_back(device->allocate(tensor.bytes()).take());
      device->upload(*owned.back(), {tensor.data(), tensor.bytes()});
      in.push_back(owned.back().get());
    }
    for (const GraphOutput& output : part.outputs()) {
      const TensorType& type = part.node(output.node).type;
      results.emplace_back(type.dtype, type.shape);
      owned.push_back(device->allocate(results.back().bytes()).take());
      out.push_back(owned.back().get());
    }
    auto ticket = device->submit(*executable.value(), in, out);
    if (!ticket) return ticket.error();
    if (auto error = device->wait(ticket.value())) return *error;
    for (size_t i = 0; i < results.size(); ++i) {
      device->download({results[i].mutable_data(), results[i].bytes()}, *out[i]);
    }
    return results;
  }

  std::shared_ptr<const Profile> profile;
  std::unique_ptr<Device> device;
};

Graph unary(Value (*op)(Value), DType dtype = DType::kF32) {
  Builder b("part");
  b.output("o0", op(b.input("i0", {dtype, {4}})));
  return std::move(b).build();
}

TEST(SimDevice, RoundsByTheClassOfTheOp) {
  const std::string bf16 = "{format: bf16, mode: away}";
  Opened sim("rounding:\n  elementwise: {result: " + bf16 +
             "}\n  transcendental: {operands: " + bf16 + "}\n");
  const float x = 1 + 0x1p-10f, up = 1 + 0x1p-7f;
  const Tensor in = Tensor::from_f32({4}, std::vector<float>(4, x));
  const auto first = [&](const Graph& part) {
    return sim.run(part, {in}).take()[0].values<float>()[0];
  };
  EXPECT_EQ(first(unary(ops::neg)), -up);                   // the result
  EXPECT_NEAR(first(unary(ops::exp)), std::exp(up), 1e-6);  // the operand only
  EXPECT_EQ(first(unary([](Value v) { return ops::reshape(v, {2, 2}); })), x);
  EXPECT_EQ(first(unary([](Value v) { return ops::reduce_max(v, {0}); })), x);
}

TEST(SimDevice, MultipliesBf16AndFlushesOnTheWay) {
  const auto furiosa = make_backend("sim:furiosa").take();
  auto device = furiosa->open({.threads = 1}).take();
  Builder b("part");
  const Value x = b.input("i0", {DType::kF32, {1, 2}}), w = b.input("i1", {DType::kF32, {2, 1}});
  b.output("o0", ops::matmul(x, w));
  b.output("o1", ops::add(x, x));
  const Graph part = std::move(b).build();
  const auto executable = device->load(furiosa->compile(part, {}).take(), part).take();
  const std::vector<float> x_values = {1 + 0x1p-9f, 1}, w_values = {1, 0x1p-130f};
  std::vector<std::shared_ptr<Buffer>> buffers;
  for (const auto* values : {&x_values, &w_values}) {
    buffers.push_back(device->allocate(8).take());
    device->upload(*buffers.back(), std::as_bytes(std::span(*values)));
    EXPECT_EQ(buffers.back()->host_pointer(), nullptr);
  }
  buffers.push_back(device->allocate(4).take());
  buffers.push_back(device->allocate(8).take());
  Buffer* const in[] = {buffers[0].get(), buffers[1].get()};
  Buffer* const out[] = {buffers[2].get(), buffers[3].get()};
  ASSERT_TRUE(device->submit(*executable, in, out).ok());
  float product = 0;
  std::vector<float> sum(2);
  device->download(std::as_writable_bytes(std::span(&product, 1)), *buffers[2]);
  device->download(std::as_writable_bytes(std::span(sum)), *buffers[3]);
  EXPECT_EQ(product, 1.0f);
  EXPECT_EQ(sum[0], 2 + 0x1p-8f);  // vector ops are f32
}

TEST(SimDevice, CompiledPartsHaveTheirOwnInputs) {
  Opened sim("inputs: by-use\n");
  // i1 is read by nothing, i0 twice by one node.
  const Graph part = part_of(
      "%3 = sub(%0, %2) : f32[4,4]\n%4 = add(%0, %0) : f32[4,4]\n"
      "%5 = mul(%3, %4) : f32[4,4]\noutput \"o\" = %5\n");
  const Blob blob = compile_part(*sim.profile, part).take();
  const Graph compiled = decode_blob(*sim.profile, blob).take();
  std::vector<std::string> names;
  for (const NodeId id : compiled.inputs()) names.push_back(compiled.node(id).name);
  EXPECT_EQ(names, (std::vector<std::string>{"i0", "i2"}));
  const Graph other = part_of(
      "%3 = sub(%2, %0) : f32[4,4]\n%4 = exp(%1) : f32[4,4]\n"
      "output \"o\" = %3\noutput \"p\" = %4\n");
  const Graph reordered =
      decode_blob(*sim.profile, compile_part(*sim.profile, other).take()).take();
  EXPECT_EQ(reordered.node(reordered.inputs()[0]).name, "i1");
  const auto filled = [](float v) { return Tensor::from_f32({4, 4}, std::vector<float>(16, v)); };
  const auto result = sim.run(part, {filled(3), filled(99), filled(1)}).take();
  EXPECT_EQ(result[0].values<float>()[0], 12);
  const auto swapped = sim.run(other, {filled(3), filled(0), filled(1)}).take();
  EXPECT_EQ(swapped[0].values<float>()[0], -2);
  EXPECT_EQ(swapped[1].values<float>()[0], 1);
}

TEST(SimDevice, RefusesBlobsThatAreNotItsOwn) {
  Opened sim("memory_bytes: 0\n"), other("memory_bytes: 1\n");
  const Graph part = unary(ops::exp), wider = unary(ops::exp, DType::kBF16);
  const Blob blob = compile_part(*sim.profile, part).take();
  const auto what = [](const Result<std::unique_ptr<Executable>>& loaded) {
    return loaded.ok() ? std::string("loaded") : loaded.error().what.substr(0, 16);
  };
  EXPECT_EQ(what(sim.device->load(blob, part)), "loaded");
  EXPECT_EQ(what(other.device->load(blob, part)), "must be made by ");
  Blob damaged = blob;
  damaged.back() = '!';
  EXPECT_EQ(what(sim.device->load(damaged, part)), "is damaged");
  EXPECT_EQ(what(sim.device->load(blob.substr(0, 20), part)), "must be made by ");
  EXPECT_EQ(what(sim.device->load(blob, wider)), "type differs fro");
}

TEST(SimDevice, MemoryOfItsOwnRunsOut) {
  Opened sim("memory_bytes: 1000\n");
  auto first = sim.device->allocate(600).take();
  const auto view = sim.device->view(first, 0, 600);  // no memory of its own
  auto second = sim.device->allocate(600);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.error().kind, ErrorKind::kRetriable);
  EXPECT_EQ(second.error().text(),
            "sim:test: device memory is exhausted; got 600 bytes wanted, 400 left of 1000; hint: "
            "use a smaller --batch or --seq-len");
  EXPECT_TRUE(sim.device->allocate(400).ok());
  const Tensor host(DType::kF32, {200});
  EXPECT_FALSE(sim.device->adopt(host).ok());  // a copy
}

TEST(SimDevice, MemoryIsFreedWithTheLastOwner) {
  Opened sim("memory_bytes: 1000\n");
  auto first = sim.device->allocate(600).take();
  auto view = sim.device->view(first, 100, 100);
  first.reset();
  EXPECT_FALSE(sim.device->allocate(600).ok());
  view.reset();
  EXPECT_TRUE(sim.device->allocate(600).ok());
}

TEST(SimDevice, HostMemoryMustFitACall) {
  Opened sim("memory: host\nmemory_bytes: 31\n");
  EXPECT_TRUE(sim.device->allocate(1 << 20).ok());  // the host's
  const Graph part = unary(ops::exp);               // 16 bytes in, 16 out
  const auto loaded = sim.device->load(compile_part(*sim.profile, part).take(), part);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().kind, ErrorKind::kRetriable);
}

TEST(SimDevice, KeepsItsOwnClock) {
  const std::string costs =
      "costs: {launch_seconds: 1, flops_per_second: 64, h2d_bytes_per_second: 64, "
      "d2h_bytes_per_second: 32}\n";
  const Graph part = part_of("%3 = matmul(%0, %1) : f32[4,4]\noutput \"o\" = %3\n");
  const std::vector<Tensor> inputs(3, Tensor(DType::kF32, {4, 4}));
  Opened resident(costs), host("memory: host\ninputs: by-use\n" + costs);
  EXPECT_FALSE(resident.device->last_call_seconds().has_value());
  ASSERT_TRUE(resident.run(part, inputs).ok());
  EXPECT_DOUBLE_EQ(*resident.device->last_call_seconds(), 1 + 128 / 64.0);
  ASSERT_TRUE(host.run(part, inputs).ok());  // two inputs are read, one output comes back
  EXPECT_DOUBLE_EQ(*host.device->last_call_seconds(), 1 + 128 / 64.0 + 128 / 64.0 + 64 / 32.0);
}

// ---- planted faults ----------------------------------------------------------------------------

TEST(SimFaults, OfLoading) {
  const Graph part = unary(ops::exp), other = unary(ops::neg);
  const auto error = [&](const std::string& kind, const Graph& graph) {
    Opened sim("faults:\n  - {when: load, kind: " + kind + ", part: exp(}\n");
    const auto loaded = sim.device->load(compile_part(*sim.profile, graph).take(), graph);
    return loaded.ok() ? std::optional<Error>() : loaded.error();
  };
  const auto reject = error("reject", part), crash = error("crash", part),
             memory = error("out-of-memory", part);
  ASSERT_TRUE(reject && crash && memory);
  EXPECT_EQ(reject->kind, ErrorKind::kBadInput);
  EXPECT_EQ(reject->what, "the runtime refuses the compiled part");
  EXPECT_EQ(crash->kind, ErrorKind::kRetriable);
  EXPECT_EQ(crash->what, "the loader aborted");
  EXPECT_EQ(memory->kind, ErrorKind::kRetriable);
  EXPECT_EQ(memory->what, "device memory is exhausted");
  EXPECT_FALSE(error("reject", other));
}

TEST(SimFaults, OfRunning) {
  const Graph part = unary(ops::exp);
  const std::vector<Tensor> in = {Tensor(DType::kF32, {4})};
  Opened slow("faults:\n  - {when: run, kind: timeout}\n");
  const auto timeout = slow.run(part, in);
  ASSERT_FALSE(timeout.ok());
  EXPECT_EQ(timeout.error().kind, ErrorKind::kRetriable);
  EXPECT_EQ(timeout.error().what, "the call timed out");

  Opened dying("faults:\n  - {when: run, kind: lost}\n");
  for (int call = 0; call < 2; ++call) {  // it stays lost
    const auto lost = dying.run(part, in);
    ASSERT_FALSE(lost.ok());
    EXPECT_EQ(lost.error().kind, ErrorKind::kRetriable);
    EXPECT_EQ(lost.error().what, "the device is lost");
    EXPECT_TRUE(dying.device->lost());
  }

  Opened lying("faults:\n  - {when: run, kind: wrong}\n");
  const auto wrong = lying.run(part, in).take();
  EXPECT_EQ(wrong[0].values<float>()[0], -1);
  EXPECT_EQ(wrong[0].values<float>()[1], 1);
  const auto bf16 = lying.run(unary(ops::exp, DType::kBF16), {Tensor(DType::kBF16, {4})}).take();
  EXPECT_EQ(element(bf16[0], 2), -1);
}

// What lay in the memory of a lost device is gone; the host's own memory is not.
TEST(SimFaults, ALostDeviceTakesItsMemoryAlong) {
  const Graph part = unary(ops::exp);
  const float ones[] = {1, 1, 1, 1};
  for (const bool host_memory : {false, true}) {
    Opened dying("memory: " + std::string(host_memory ? "host" : "device") +
                 "\nfaults:\n  - {when: run, kind: lost}\n");
    const auto buffer = dying.device->allocate(sizeof ones).take();
    dying.device->upload(*buffer, std::as_bytes(std::span(ones)));
    Tensor read(DType::kF32, {4});
    dying.device->download({read.mutable_data(), read.bytes()}, *buffer);
    EXPECT_EQ(read.values<float>()[3], 1);
    ASSERT_FALSE(dying.run(part, {Tensor(DType::kF32, {4})}).ok());
    dying.device->upload(*buffer, std::as_bytes(std::span(ones)));
    dying.device->download({read.mutable_data(), read.bytes()}, *buffer);
    EXPECT_EQ(std::isnan(read.values<float>()[3]), !host_memory);
  }
}

TEST(SimFaults, OfTheLaunchThatWasChosen) {
  Opened sim("faults:\n  - {when: run, kind: wrong, part: exp(, launch: 2}\n");
  const Graph part = unary(ops::exp);
  const Blob blob = compile_part(*sim.profile, part).take();
  const auto executable = sim.device->load(blob, part).take();
  const auto in = sim.device->allocate(16).take(), out = sim.device->allocate(16).take();
  Buffer* const inputs[] = {in.get()};
  Buffer* const outputs[] = {out.get()};
  std::vector<float> first;
  for (int call = 0; call < 3; ++call) {
    ASSERT_TRUE(sim.device->submit(*executable, inputs, outputs).ok());
    std::vector<float> values(4);
    sim.device->download(std::as_writable_bytes(std::span(values)), *out);
    first.push_back(values[0]);
  }
  EXPECT_EQ(first, (std::vector<float>{1, -1, 1}));
}

}  // namespace
}  // namespace npu
