// Rounding on the bits of f32: a finite magnitude is an integer whose low bits fall away.
#include "backend/sim_rounding.h"

#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "ir/graph.h"

namespace npu::sim {
namespace {

constexpr uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u, kCanonicalNan = 0x7fc00000u;
constexpr uint32_t kQuiet = 0x00400000u;
constexpr int kF32Mantissa = 23, kF32Bias = 127;

struct FormatFacts {
  int mantissa;      // bits without the leading one
  int min_exponent;  // of the smallest normal value
  int max_exponent;
};

FormatFacts facts_of(Format format) {
  switch (format) {
    case Format::kF32:
      return {23, -126, 127};
    case Format::kBF16:
      return {7, -126, 127};
    case Format::kF16:
      return {10, -14, 15};
    case Format::kDlFloat:
      return {9, -31, 32};
  }
  return {23, -126, 127};
}

// A rounding in the form of the loop below.
struct Rule {
  uint32_t dropped = 0;      // mask of the bits that fall away
  uint32_t half = 0;         // kNearest: half a unit less one
  uint32_t lowest_kept = 0;  // shift to the last kept bit
  uint32_t away = 0;         // kAway: what is added to magnitudes that are not of the format
  uint32_t away_from = 0;    // kAway: smaller magnitudes go to the nearest value
  uint32_t min_normal = 0, max_finite = 0;  // magnitudes
  uint32_t flushed_below = 0;
  uint32_t nan_and = 0, nan_or = 0;
  double subnormal_unit = 0;  // of a format with fewer exponents than f32 that keeps subnormals
};

Rule rule_of(const Rounding& rounding, const Specials& specials) {
  const FormatFacts facts = facts_of(rounding.format);
  const uint32_t drop = static_cast<uint32_t>(kF32Mantissa - facts.mantissa);
  const uint32_t unit = 1u << drop;
  Rule rule;
  rule.dropped = unit - 1;
  rule.lowest_kept = drop;
  rule.half = drop == 0 ? 0 : unit / 2 - 1;
  rule.away = static_cast<uint32_t>(std::lround((rounding.bias + 0.5) * unit));
  rule.away_from = std::bit_cast<uint32_t>(static_cast<float>(rounding.from));
  rule.min_normal = static_cast<uint32_t>(facts.min_exponent + kF32Bias) << kF32Mantissa;
  rule.max_finite =
      (static_cast<uint32_t>(facts.max_exponent + kF32Bias + 1) << kF32Mantissa) - unit;
  const bool narrow = facts.min_exponent > -126;
  if (specials.flush_subnormals || rounding.format == Format::kDlFloat) {
    rule.flushed_below = rule.min_normal;
  } else if (narrow) {
    rule.subnormal_unit = std::ldexp(1.0, facts.min_exponent - facts.mantissa);
  }
  rule.nan_and = specials.canonical_nan ? 0u : ~0u;
  rule.nan_or = specials.canonical_nan ? kCanonicalNan : kQuiet;
  return rule;
}

template <Mode kMode>
uint32_t rounded_bits(uint32_t bits, const Rule& rule) {
  const uint32_t sign = bits & kSign, magnitude = bits & ~kSign;
  uint32_t added = 0;
  if constexpr (kMode != Mode::kTruncate) {
    const uint32_t odd = rule.dropped == 0 ? 0 : (magnitude >> rule.lowest_kept) & 1u;
    added = rule.half + odd;
  }
  if constexpr (kMode == Mode::kAway) {
    const uint32_t away = (magnitude & rule.dropped) != 0 ? rule.away : 0u;
    added = magnitude >= rule.away_from ? away : added;
  }
  uint32_t result = (magnitude + added) & ~rule.dropped;
  result = result > rule.max_finite ? kInfinity : result;
  result = magnitude < rule.flushed_below ? 0u : result;
  result |= sign;
  return magnitude > kInfinity ? (bits & rule.nan_and) | rule.nan_or : result;
}

template <Mode kMode>
void round_loop(const float* in, float* out, size_t count, const Rule& rule) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = std::bit_cast<float>(rounded_bits<kMode>(std::bit_cast<uint32_t>(in[i]), rule));
  }
}

// Below the smallest normal value of a narrow format the unit no longer follows the exponent.
float rounded_subnormal(float value, const Rule& rule, const Rounding& rounding) {
  const double units = std::abs(static_cast<double>(value)) / rule.subnormal_unit;
  double whole = std::floor(units);
  const bool nearest = rounding.mode == Mode::kAway && std::abs(value) < rounding.from;
  if (rounding.mode == Mode::kNearest || nearest) {
    whole = std::nearbyint(units);
  } else if (rounding.mode == Mode::kAway && whole != units) {
    whole = std::floor(units + rounding.bias + 0.5);
  }
  return static_cast<float>(std::copysign(whole * rule.subnormal_unit, value));
}

// ---- as an op ----------------------------------------------------------------------------------

constexpr std::array<AttrSpec, 6> kAttrs = {{{"format", AttrKind::kInteger},
                                             {"mode", AttrKind::kInteger},
                                             {"bias", AttrKind::kReal},
                                             {"from", AttrKind::kReal},
                                             {"flush", AttrKind::kInteger},
                                             {"canonical", AttrKind::kInteger}}};

Result<TensorType> infer_round(std::span<const TensorType> in, const Attrs&) { return in[0]; }

// 16-bit elements are widened a block at a time, so that it stays in the cache.
template <class Load, class Store>
void round_narrow(std::span<const uint16_t> in, std::span<uint16_t> out, const Rounding& rounding,
                  const Specials& specials, Load load, Store store) {
  constexpr size_t kBlock = 1024;
  std::array<float, kBlock> wide{};
  for (size_t begin = 0; begin < in.size(); begin += kBlock) {
    const size_t count = std::min(kBlock, in.size() - begin);
    for (size_t i = 0; i < count; ++i) wide[i] = load(in[begin + i]);
    const std::span<float> block(wide.data(), count);
    round_values(block, block, rounding, specials);
    for (size_t i = 0; i < count; ++i) out[begin + i] = store(wide[i]);
  }
}

void round_kernel(std::span<const Tensor> in, const Attrs& attrs, Tensor& out) {
  const Rounding rounding = {static_cast<Format>(attrs.integer("format")),
                             static_cast<Mode>(attrs.integer("mode")), attrs.real("bias"),
                             attrs.real("from")};
  const Specials specials = {attrs.integer("flush") != 0, attrs.integer("canonical") != 0};
  const Tensor& x = in[0];
  if (x.dtype() == DType::kF32) {
    return round_values(x.values<float>(), out.mutable_values<float>(), rounding, specials);
  }
  const std::span<const uint16_t> from = x.values<uint16_t>();
  const std::span<uint16_t> to = out.mutable_values<uint16_t>();
  if (x.dtype() == DType::kBF16) {
    round_narrow(from, to, rounding, specials, f32_from_bf16, bf16_from_f32);
  } else {
    round_narrow(from, to, rounding, specials, f32_from_f16, f16_from_f32);
  }
}

constexpr OpDef kRound = {.name = "sim_round",
                          .arity = 1,
                          .attrs = kAttrs,
                          .traits = {.elementwise = true},
                          .summary = "a simulated device's rounding",
                          .infer = infer_round,
                          .kernel = round_kernel,
                          .vjp = nullptr,
                          .no_grad_reason = "only in compiled parts",
                          .onnx = nullptr,
                          .openvino = nullptr,
                          .samples = nullptr};

}  // namespace

void round_values(std::span<const float> in, std::span<float> out, const Rounding& rounding,
                  const Specials& specials) {
  NPU_CHECK(in.size() == out.size(), "rounding keeps the number of values");
  const Rule rule = rule_of(rounding, specials);
  if (rule.subnormal_unit > 0) {
    const float min_normal = std::bit_cast<float>(rule.min_normal);
    for (size_t i = 0; i < in.size(); ++i) {
      const float value = in[i];
      if (std::abs(value) < min_normal) {
        out[i] = rounded_subnormal(value, rule, rounding);
      } else if (rounding.mode == Mode::kNearest) {
        round_loop<Mode::kNearest>(&value, &out[i], 1, rule);
      } else if (rounding.mode == Mode::kAway) {
        round_loop<Mode::kAway>(&value, &out[i], 1, rule);
      } else {
        round_loop<Mode::kTruncate>(&value, &out[i], 1, rule);
      }
    }
    return;
  }
  switch (rounding.mode) {
    case Mode::kNearest:
      return round_loop<Mode::kNearest>(in.data(), out.data(), in.size(), rule);
    case Mode::kAway:
      return round_loop<Mode::kAway>(in.data(), out.data(), in.size(), rule);
    case Mode::kTruncate:
      return round_loop<Mode::kTruncate>(in.data(), out.data(), in.size(), rule);
  }
}

Value rounded(Value x, const Rounding& rounding, const Specials& specials) {
  return x.builder->apply(kRound, {x},
                          {{"format", static_cast<int64_t>(rounding.format)},
                           {"mode", static_cast<int64_t>(rounding.mode)},
                           {"bias", rounding.bias},
                           {"from", rounding.from},
                           {"flush", int64_t{specials.flush_subnormals}},
                           {"canonical", int64_t{specials.canonical_nan}}});
}

}  // namespace npu::sim
