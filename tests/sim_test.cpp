// Simulated devices without children: profiles, roundings bit by bit, what compilers refuse, and
// the device's memory, ports and clock.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/sim.h"
#include "backend/sim_compile.h"
#include "backend/sim_device.h"
#include "base/file.h"
#include "base/random.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "ops/table.h"

namespace npu {
namespace {

using namespace sim;

Profile profile_of(const std::string& text) {
  return parse_profile("name: test\n" + text, "p.yaml").take();
}

// ---- profiles ----------------------------------------------------------------------------------

TEST(Profile, ReadsEveryKey) {
  const Profile p = parse_profile(R"(
name: chip
compute_dtype: bf16
memory: host
memory_bytes: 4096
arithmetic: [f32, bf16]
ops: [matmul, add]
rounding:
  subnormals: flush
  nan: canonical
  matmul: {operands: {format: bf16}, result: {format: f16, mode: away, bias: 0.75, from: 0.5}}
  reduce: {result: {format: dlfloat, mode: truncate}}
inputs: by-use
reject:
  - {pattern: neg -> add => matmul, how: crash, reason: boom}
limits: {contractions: 1, nodes: 2, inputs: 3, outputs: 4, known: false, beyond: hang}
costs: {launch_seconds: 1, flops_per_second: 2, h2d_bytes_per_second: 3, d2h_bytes_per_second: 4,
        compile_seconds_per_node: 0}
host_parts: [fwd, ce-grad]
legalise: [fold_neg_add]
faults:
  - {when: compile, kind: out-of-memory, part: exp}
  - {when: run, kind: wrong, launch: 3}
)",
                                  "p.yaml")
                        .take();
  EXPECT_EQ(p.name, "chip");
  EXPECT_EQ(p.compute_dtype, DType::kBF16);
  EXPECT_TRUE(p.host_memory);
  EXPECT_EQ(p.memory_bytes, 4096);
  EXPECT_EQ(p.arithmetic, (std::vector<DType>{DType::kF32, DType::kBF16}));
  EXPECT_EQ(p.ops, (std::vector<std::string>{"matmul", "add"}));
  EXPECT_EQ(p.specials, (Specials{true, true}));
  EXPECT_EQ(p.rounding_of(OpClass::kMatmul).operands, (Rounding{Format::kBF16, Mode::kNearest}));
  EXPECT_EQ(p.rounding_of(OpClass::kMatmul).result,
            (Rounding{Format::kF16, Mode::kAway, 0.75, 0.5}));
  EXPECT_EQ(p.rounding_of(OpClass::kReduce).result, (Rounding{Format::kDlFloat, Mode::kTruncate}));
  EXPECT_EQ(p.rounding_of(OpClass::kMovement).result, Rounding{});
  EXPECT_TRUE(p.inputs_by_use);
  ASSERT_EQ(p.reject.size(), 1u);
  ASSERT_EQ(p.reject[0].pattern.size(), 3u);
  EXPECT_EQ(p.reject[0].pattern[1].op, "add");
  EXPECT_TRUE(p.reject[0].pattern[1].adjacent);
  EXPECT_FALSE(p.reject[0].pattern[2].adjacent);
  EXPECT_EQ(p.reject[0].how, Failure::kCrash);
  EXPECT_EQ(p.limits.most.outputs, 4);
  EXPECT_FALSE(p.limits.known);
  EXPECT_EQ(p.limits.beyond, Failure::kHang);
  EXPECT_EQ(p.costs.d2h_bytes_per_second, 4);
  EXPECT_EQ(p.host_parts, (std::vector<std::string>{"fwd", "ce-grad"}));
  EXPECT_EQ(p.legalise, std::vector<std::string>{"fold_neg_add"});
  ASSERT_EQ(p.faults.size(), 2u);
  EXPECT_EQ(p.faults[0].kind, Failure::kOutOfMemory);
  EXPECT_EQ(p.faults[1].launch, 3);
}

TEST(Profile, ErrorsNameFileLineAndKey) {
  struct Case {
    const char *text, *error;
  };
  const Case cases[] = {
      {"name: x\nspeed: 3\n",
       "p.yaml:2: unknown key; got 'speed'; hint: keys are name, compute_dtype, memory, "
       "memory_bytes, rounding, ops, arithmetic, reject, inputs, limits, costs, host_parts, "
       "legalise, faults"},
      {"memory: host\n", "p.yaml:1: needs a name; hint: write name: mychip"},
      {"name: x\nname: y\n", "p.yaml:2: a key may stand once; got 'name' again"},
      {"name: x\nmemory:\n", "p.yaml:2:memory: has no value"},
      {"name: x\nmemory: disk\n", "p.yaml:2:memory: must be one of host, device; got 'disk'"},
      {"name: x\nmemory_bytes: -1\n",
       "p.yaml:2:memory_bytes: must be a whole number of at least 0; got '-1'"},
      {"name: x\nrounding:\n  matmul: {result: {format: bf8}}\n",
       "p.yaml:3:rounding.matmul.result.format: must be one of f32, bf16, f16, dlfloat; got 'bf8'"},
      {"name: x\nrounding:\n  matmul:\n    result: {bias: 0.5}\n",
       "p.yaml:4:rounding.matmul.result: bias and from go with mode away; hint: add 'mode: away', "
       "or drop them"},
      {"name: x\nrounding:\n  matmul:\n    result: {mode: away, bias: 2}\n",
       "p.yaml:4:rounding.matmul.result.bias: must be a number from 0 to 1; got '2'"},
      {"name: x\nops: [add, frob]\n",
       "p.yaml:2:ops[1]: must name an op; got 'frob'; hint: docs/ops.md lists them"},
      {"name: x\nreject:\n  - pattern: neg add\n",
       "p.yaml:3:reject[0].pattern: ops must be joined by -> (reads it) or => (somewhere behind "
       "it); got 'add'; hint: write 'neg -> add => matmul'"},
      {"name: x\nreject:\n  - pattern: neg ->\n",
       "p.yaml:3:reject[0].pattern: must end with an op; got 'neg ->'"},
      {"name: x\nreject:\n  - how: crash\n",
       "p.yaml:3:reject[0]: needs a pattern; hint: write pattern: neg -> add"},
      {"name: x\nhost_parts: [forward]\n",
       "p.yaml:2:host_parts[0]: must name a group; got 'forward'; hint: groups are fwd, bwd, rms, "
       "rms-bwd, ce-stats, ce-grad"},
      {"name: x\ncosts: 3\n", "p.yaml:2:costs: must be a map; got '3'"},
      {"name: x\nfaults:\n  - {when: load, kind: wrong}\n",
       "p.yaml:3:faults[0].kind: must be one of reject, crash, out-of-memory; got 'wrong'"},
      {"name: x\nfaults:\n  - {when: compile, kind: hang, launch: 2}\n",
       "p.yaml:3:faults[0]: launch goes with when: run; hint: name the part instead"},
      {"name: x\nfaults: {}\n", "p.yaml:2:faults: must be a list; got a map"},
      {"- a\n", "p.yaml:1: must be a map; got a list"},
  };
  for (const Case& c : cases) {
    const Result<Profile> profile = parse_profile(c.text, "p.yaml");
    ASSERT_FALSE(profile.ok()) << c.text;
    EXPECT_EQ(profile.error().text(), c.error);
    EXPECT_EQ(profile.error().kind, ErrorKind::kBadInput);
  }
  const Result<Profile> broken = parse_profile("name: x\nops: [add\n", "p.yaml");
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().where.rfind("p.yaml:", 0), 0u) << broken.error().text();
  EXPECT_EQ(broken.error().what, "is not YAML");
}

TEST(Profile, FilesAreBackendsByAbsolutePath) {
  const TempDir folder;
  const fs::path path = folder.path() / "chip.yaml";
  publish_text(path, "name: chip\n");
  const auto backend = make_backend("sim:" + fs::relative(path).string()).take();
  EXPECT_EQ(backend->traits().name, "sim:" + fs::absolute(path).lexically_normal().string());
  const std::string version = backend->compiler_version().take();
  EXPECT_EQ(version, make_backend(backend->traits().name).take()->compiler_version().take());
  // Every byte of the profile counts for the cache.
  publish_text(path, "name: chip\nmemory_bytes: 1\n");
  EXPECT_NE(version, make_backend(backend->traits().name).take()->compiler_version().take());
  const auto absent = make_backend("sim:" + (folder.path() / "other.yaml").string());
  ASSERT_FALSE(absent.ok());
  EXPECT_NE(absent.error().text().find("other.yaml"), std::string::npos);
  EXPECT_NE(absent.error().hint.find("sim:furiosa"), std::string::npos);
  EXPECT_FALSE(make_backend("sim:").ok());
}

TEST(Profile, BuiltInDevicesSayWhatIsKnownOfThem) {
  const auto furiosa = make_backend("sim:furiosa").take();
  EXPECT_FALSE(furiosa->traits().host_memory);
  EXPECT_TRUE(furiosa->traits().host_parts.empty());
  const auto rbln = make_backend("sim:rbln").take();
  EXPECT_TRUE(rbln->traits().host_memory);
  EXPECT_EQ(rbln->traits().host_parts, std::vector<std::string>{"fwd"});
  EXPECT_EQ(rbln->traits().legalise, std::vector<std::string>{"fold_neg_add"});
  EXPECT_FALSE(rbln->compiles_in_process());
}

// ---- rounding ----------------------------------------------------------------------------------

float round_one(float value, const Rounding& rounding, const Specials& specials = {}) {
  float out = 0;
  round_values({&value, 1}, {&out, 1}, rounding, specials);
  return out;
}

TEST(Rounding, NearestIsTheConversionOfThisProgram) {
  const RandomStream stream(1, "round");
  for (uint64_t i = 0; i < 200000; ++i) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(stream.bits(i)));
    if (std::isnan(x)) continue;
    EXPECT_EQ(std::bit_cast<uint32_t>(round_one(x, {Format::kBF16})),
              std::bit_cast<uint32_t>(f32_from_bf16(bf16_from_f32(x))))
        << x;
    EXPECT_EQ(std::bit_cast<uint32_t>(round_one(x, {Format::kF16})),
              std::bit_cast<uint32_t>(f32_from_f16(f16_from_f32(x))))
        << x;
  }
}

TEST(Rounding, GoesWhereTheModeSays) {
  const float unit = 0x1p-7f;  // of bf16 from 1 to 2
  const auto at = [&](double units) { return static_cast<float>(1 + units * unit); };
  struct Case {
    double units;
    float nearest, away, more, truncate;
  };
  const Case cases[] = {
      {0, at(0), at(0), at(0), at(0)},
      {0.25, at(0), at(1), at(1), at(0)},
      {0.5, at(0), at(1), at(1), at(0)},
      {0.625, at(1), at(1), at(2), at(0)},
      {0.75, at(1), at(1), at(2), at(0)},
      {1.5, at(2), at(2), at(2), at(1)},
      {127.75, at(128), at(128), at(129), at(127)},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.units);
    for (const float sign : {1.0f, -1.0f}) {
      const float x = sign * at(c.units);
      EXPECT_EQ(round_one(x, {Format::kBF16, Mode::kNearest}), sign * c.nearest);
      EXPECT_EQ(round_one(x, {Format::kBF16, Mode::kAway, 0.5}), sign * c.away);
      if (c.units < 127) {
        EXPECT_EQ(round_one(x, {Format::kBF16, Mode::kAway, 0.9}), sign * c.more);
      }
      EXPECT_EQ(round_one(x, {Format::kBF16, Mode::kTruncate}), sign * c.truncate);
    }
  }
}

// The mean error over even values, in units in the last place, is the bias that was asked for.
TEST(Rounding, BiasIsTheMeanErrorAwayFromZero) {
  const RandomStream stream(2, "bias");
  for (const double bias : {0.0, 0.25, 0.5, 0.7, 0.9}) {
    for (const auto& [format, unit] :
         {std::pair(Format::kBF16, 0x1p-7), {Format::kF16, 0x1p-10}, {Format::kDlFloat, 0x1p-9}}) {
      double sum = 0;
      constexpr int kCount = 200000;
      for (uint64_t i = 0; i < kCount; ++i) {
        const float x = static_cast<float>((i % 2 == 0 ? 1 : -1) * (1 + 0.9 * stream.uniform(i)));
        const float rounded = round_one(x, {format, Mode::kAway, bias});
        sum += (std::abs(double{rounded}) - std::abs(double{x})) / unit;
      }
      // Three standard deviations of a mean of values that spread over a unit: 3 · 0.3 / √N.
      EXPECT_NEAR(sum / kCount, bias, 0.002 + 1e-3) << bias;
    }
  }
}

TEST(Rounding, BiasBeginsAtAMagnitude) {
  const Rounding rounding = {Format::kBF16, Mode::kAway, 0.9, 1.0};
  EXPECT_EQ(round_one(1 + 0x1p-9f, rounding), 1 + 0x1p-7f);
  EXPECT_EQ(round_one(0.5f + 0x1p-10f, rounding), 0.5f);
  EXPECT_EQ(round_one(-0.5f - 0x1p-10f, rounding), -0.5f);
}

TEST(Rounding, KeepsWhatTheFormatHoldsAndOverflowsToInfinity) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const Mode mode : {Mode::kNearest, Mode::kAway, Mode::kTruncate}) {
    const Rounding f16 = {Format::kF16, mode, 0.5};
    for (const float x : {0.0f, 1.0f, 65504.0f, 0x1p-14f, 0x1p-24f, kInf}) {
      EXPECT_EQ(round_one(x, f16), x);
      EXPECT_EQ(round_one(-x, f16), -x);
    }
    EXPECT_TRUE(std::signbit(round_one(-0.0f, f16)));
    EXPECT_EQ(round_one(1e6f, f16), kInf);
    EXPECT_EQ(round_one(-1e6f, f16), -kInf);
  }
  EXPECT_EQ(round_one(65519.0f, {Format::kF16}), 65504.0f);
  EXPECT_EQ(round_one(65520.0f, {Format::kF16}), kInf);
  EXPECT_EQ(round_one(65505.0f, {Format::kF16, Mode::kAway, 0.5}), kInf);
  EXPECT_EQ(round_one(65535.0f, {Format::kF16, Mode::kTruncate}), 65504.0f);
  EXPECT_EQ(round_one(3e38f, {Format::kDlFloat}), kInf);
  EXPECT_EQ(round_one(0x1p-25f * 1.5f, {Format::kF16, Mode::kAway, 0.5}), 0x1p-24f);
}

TEST(Rounding, FlushesSubnormalsAndMakesNanCanonical) {
  const float subnormal = 0x1p-130f, nan = std::bit_cast<float>(0xffc12345u);
  const Specials flush = {true, true};
  EXPECT_EQ(round_one(subnormal, {}), subnormal);
  EXPECT_EQ(round_one(subnormal, {}, flush), 0.0f);
  EXPECT_TRUE(std::signbit(round_one(-subnormal, {}, flush)));
  EXPECT_EQ(round_one(0x1p-126f, {}, flush), 0x1p-126f);
  EXPECT_EQ(round_one(0x1p-15f, {Format::kF16}), 0x1p-15f);
  EXPECT_EQ(round_one(0x1p-15f, {Format::kF16}, flush), 0.0f);
  EXPECT_EQ(round_one(0x1p-32f, {Format::kDlFloat}), 0.0f);  // it has no subnormals
  EXPECT_EQ(std::bit_cast<uint32_t>(round_one(nan, {Format::kBF16}, flush)), 0x7fc00000u);
  EXPECT_EQ(std::bit_cast<uint32_t>(round_one(nan, {})), 0xffc12345u);
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
  }

  Opened lying("faults:\n  - {when: run, kind: wrong}\n");
  const auto wrong = lying.run(part, in).take();
  EXPECT_EQ(wrong[0].values<float>()[0], -1);
  EXPECT_EQ(wrong[0].values<float>()[1], 1);
  const auto bf16 = lying.run(unary(ops::exp, DType::kBF16), {Tensor(DType::kBF16, {4})}).take();
  EXPECT_EQ(element(bf16[0], 2), -1);
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
