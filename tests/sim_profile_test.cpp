// Profiles of simulated devices, key by key, and their roundings bit by bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "backend/sim_profile.h"
#include "backend/sim_rounding.h"
#include "base/file.h"
#include "base/random.h"

namespace npu {
namespace {

using namespace sim;

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
      {"name: x\ncosts: {compile_seconds_per_node: 1e7}\n",
       "p.yaml:2:costs.compile_seconds_per_node: must be a number from 0 to 1e+06; got '1e7'"},
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

}  // namespace
}  // namespace npu
