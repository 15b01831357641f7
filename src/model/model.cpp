// Facts about the family that graphs, files and the trainer share: linears, targets, chunks, RoPE.
#include "model/model.h"

#include <algorithm>
#include <cmath>

namespace npu {

double LoraSpec::scale() const {
  return rslora ? alpha / std::sqrt(static_cast<double>(rank)) : alpha / static_cast<double>(rank);
}

bool LoraSpec::has(std::string_view linear) const {
  return std::find(targets.begin(), targets.end(), linear) != targets.end();
}

const std::vector<Linear>& linears() {
  using C = ModelConfig;
  static constexpr auto hidden = [](const C& c) { return c.hidden_size; };
  static constexpr auto inner = [](const C& c) { return c.intermediate_size; };
  static constexpr auto queries = [](const C& c) { return c.num_attention_heads * c.head_dim; };
  static constexpr auto keys = [](const C& c) { return c.num_key_value_heads * c.head_dim; };
  static const std::vector<Linear> kLinears = {
      {"q_proj", "self_attn.q_proj", "q", hidden, queries},
      {"k_proj", "self_attn.k_proj", "k", hidden, keys},
      {"v_proj", "self_attn.v_proj", "v", hidden, keys},
      {"o_proj", "self_attn.o_proj", "o", queries, hidden},
      {"gate_proj", "mlp.gate_proj", "gate", hidden, inner},
      {"up_proj", "mlp.up_proj", "up", hidden, inner},
      {"down_proj", "mlp.down_proj", "down", inner, hidden},
  };
  return kLinears;
}

std::vector<std::string> parse_targets(std::string_view text) {
  std::vector<bool> chosen(linears().size(), text == "all");
  std::string known;
  for (const Linear& linear : linears()) known += std::string(linear.letter) + ",";
  size_t begin = 0;
  while (text != "all" && begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    size_t i = 0;
    while (i < linears().size() && word != linears()[i].letter && word != linears()[i].name) ++i;
    if (i == linears().size()) {
      fail(ErrorKind::kUsage, "--targets", "unknown linear", "'" + std::string(word) + "'",
           "use a comma-separated list of " + known + " or all");
    }
    chosen[i] = true;
    begin = end + 1;
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i]) names.emplace_back(linears()[i].name);
  }
  return names;
}

std::vector<std::string> trained_inputs(const LoraSpec& lora) {
  std::vector<std::string> names;
  for (const Linear& linear : linears()) {
    if (!lora.has(linear.name)) continue;
    names.push_back(std::string(linear.module) + ".lora_A");
    names.push_back(std::string(linear.module) + ".lora_B");
  }
  return names;
}

std::string_view numerics_name(Numerics numerics) {
  switch (numerics) {
    case Numerics::kHf:
      return "hf";
    case Numerics::kVllm:
      return "vllm";
    case Numerics::kFp32:
      return "fp32";
  }
  NPU_CHECK(false, "numerics");
  return "";
}

std::optional<Numerics> parse_numerics(std::string_view name) {
  for (const Numerics numerics : kAllNumerics) {
    if (name == numerics_name(numerics)) return numerics;
  }
  return std::nullopt;
}

double mask_value(DType dtype) { return dtype == DType::kF16 ? -3e4 : -1e30; }

namespace {

// `columns` rounded up by less than a sixteenth to a multiple of a power of two.
int64_t divisible_length(int64_t columns) {
  int64_t step = 1;
  while (step * 32 <= columns) step *= 2;
  return (columns + step - 1) / step * step;
}

}  // namespace

std::vector<int64_t> vocabulary_chunks(int64_t vocab_size, int64_t limit, bool padded) {
  const int64_t count = (vocab_size + limit - 1) / limit;
  for (int64_t n = count; padded; ++n) {
    const int64_t length = divisible_length((vocab_size + n - 1) / n);
    if (length <= limit) return std::vector<int64_t>(static_cast<size_t>(n), length);
  }
  // An equal division gives one compiled graph instead of two, so a few more chunks are worth it.
  for (int64_t n = count; n <= 2 * count; ++n) {
    if (vocab_size % n == 0) return std::vector<int64_t>(static_cast<size_t>(n), vocab_size / n);
  }
  const int64_t chunk = (vocab_size + count - 1) / count;
  std::vector<int64_t> sizes(static_cast<size_t>(count - 1), chunk);
  sizes.push_back(vocab_size - chunk * (count - 1));
  return sizes;
}

namespace {

// Frequencies per transformers' rope utilities: theta^(-2i/D), stretched by Llama 3.1's rule.
std::vector<float> inverse_frequencies(const ModelConfig& config) {
  constexpr double kTwoPi = 6.283185307179586;
  const int64_t half = config.head_dim / 2;
  std::vector<float> inverse(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    float frequency = 1.0f / std::pow(static_cast<float>(config.rope_theta), exponent);
    if (config.rope_scaling) {
      const RopeScaling& s = *config.rope_scaling;
      const double old_length = static_cast<double>(s.original_max_position_embeddings);
      const double wavelength = kTwoPi / frequency;
      if (wavelength > old_length / s.low_freq_factor) {
        frequency = static_cast<float>(frequency / s.factor);
      } else if (wavelength >= old_length / s.high_freq_factor) {
        const double smooth = (old_length / wavelength - s.low_freq_factor) /
                              (s.high_freq_factor - s.low_freq_factor);
        frequency = static_cast<float>((1 - smooth) * frequency / s.factor + smooth * frequency);
      }
    }
    inverse[static_cast<size_t>(i)] = frequency;
  }
  return inverse;
}

}  // namespace

RopeTables rope_tables(const ModelConfig& config, const std::vector<int32_t>& positions) {
  const std::vector<float> inverse = inverse_frequencies(config);
  const int64_t n = static_cast<int64_t>(positions.size()), head_dim = config.head_dim;
  RopeTables tables{Tensor(DType::kF32, {n, head_dim}), Tensor(DType::kF32, {n, head_dim})};
  auto cos = tables.cos.mutable_values<float>(), sin = tables.sin.mutable_values<float>();
  const size_t half = inverse.size();
  for (size_t row = 0; row < positions.size(); ++row) {
    for (size_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(positions[row]) * inverse[i];
      const size_t low = row * 2 * half + i;
      cos[low] = cos[low + half] = std::cos(angle);
      sin[low] = sin[low + half] = std::sin(angle);
    }
  }
  return tables;
}

}  // namespace npu
