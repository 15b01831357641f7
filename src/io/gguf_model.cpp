// GGUF's Llama keys and tensor names → Hugging Face's.
#include "io/gguf_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/quote.h"

namespace npu {
namespace {

struct NamePair {
  std::string_view gguf, hf;
};
constexpr NamePair kModelNames[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};
constexpr NamePair kLayerNames[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};
constexpr std::string_view kRopeFactors = "rope_freqs.weight";

std::string_view lookup(std::span<const NamePair> table, std::string_view name) {
  const auto row = std::ranges::find(table, name, &NamePair::gguf);
  return row == table.end() ? std::string_view() : row->hf;
}

// λ-dependent factors of Llama 3's scaling for each of the head_dim/2 frequencies, as llama.cpp's
// converter stores them: the inverse frequency is divided by them (transformers
// modeling_rope_utils, llama3).
std::vector<double> llama3_factors(double theta, int64_t head_dim, const RopeScaling& scaling) {
  std::vector<double> factors;
  const auto old_len = static_cast<double>(scaling.original_max_position_embeddings);
  for (int64_t i = 0; i < head_dim; i += 2) {
    const double wavelength =
        2 * M_PI * std::pow(theta, static_cast<double>(i) / static_cast<double>(head_dim));
    if (wavelength < old_len / scaling.high_freq_factor) {
      factors.push_back(1);
    } else if (wavelength > old_len / scaling.low_freq_factor) {
      factors.push_back(scaling.factor);
    } else {
      const double smooth = (old_len / wavelength - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor);
      factors.push_back(1 / ((1 - smooth) / scaling.factor + smooth));
    }
  }
  return factors;
}

// The scaling whose factors the file holds. All published Llama 3 models share low 1, high 4 and
// 8192 old positions and differ in the factor, which the lowest frequency shows plainly.
Json recognise_rope_factors(const GgufModel& model, const GgufTensor& tensor, double theta,
                            int64_t head_dim) {
  const std::string where = model.gguf.where + ": " + std::string(kRopeFactors);
  if (tensor.shape != Shape{head_dim / 2})
    fail_input(where, "must have head_dim/2 elements", shape_text(tensor.shape));
  std::vector<float> stored(static_cast<size_t>(head_dim / 2));
  dequantize(tensor.type, model.file->bytes().subspan(tensor.begin, tensor.bytes), stored);
  RopeScaling scaling;
  scaling.factor = stored.back();
  const std::vector<double> expected = llama3_factors(theta, head_dim, scaling);
  for (size_t i = 0; i < stored.size(); ++i)
    if (!(std::abs(stored[i] - expected[i]) <= 1e-4 * std::abs(expected[i])) ||
        !(scaling.factor >= 1))
      fail_input(where, "these rope factors are not those of Llama 3's scaling",
                 std::to_string(stored[i]) + " at " + std::to_string(i) + ", expected " +
                     std::to_string(expected[i]),
                 "use the model's Hugging Face directory");
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_freq_factor},
          {"high_freq_factor", scaling.high_freq_factor},
          {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
}

Json rope_scaling_of(const GgufModel& model, double theta, int64_t head_dim) {
  const Gguf& gguf = model.gguf;
  const std::string type = gguf.text("llama.rope.scaling.type", "none");
  if (type != "none")
    fail_input(gguf.where + ": llama.rope.scaling.type", "this rope type is not implemented",
               in_quotes(type));
  const GgufTensor* factors = gguf.find_tensor(kRopeFactors);
  return factors == nullptr ? Json() : recognise_rope_factors(model, *factors, theta, head_dim);
}

void check_family(const Gguf& gguf) {
  const std::string family = gguf.text("general.architecture");
  if (family != "llama")
    fail_input(gguf.where + ": general.architecture", "this architecture is not implemented",
               in_quotes(family), "implemented: llama");
  if (gguf.whole("llama.expert_count", 0) != 0)
    fail_input(gguf.where + ": llama.expert_count", "mixtures of experts are not implemented",
               std::to_string(gguf.whole("llama.expert_count")));
}

int64_t head_dim_of(const Gguf& gguf, int64_t hidden, int64_t heads) {
  if (heads < 1)
    fail_input(gguf.where + ": llama.attention.head_count", "must be positive",
               std::to_string(heads));
  const int64_t head_dim = gguf.whole("llama.attention.key_length", hidden / heads);
  for (const char* key : {"llama.attention.value_length", "llama.rope.dimension_count"})
    if (const int64_t other = gguf.whole(key, head_dim); other != head_dim)
      fail_input(gguf.where + ": " + key,
                 "must equal the head dimension " + std::to_string(head_dim),
                 std::to_string(other));
  // parse_model_config() has the full rules; this one comes before rope factors are compared.
  if (head_dim < 2 || head_dim > (1 << 20))
    fail_input(gguf.where + ": llama.attention.key_length", "must be from 2 to 2^20",
               std::to_string(head_dim));
  return head_dim;
}

// Rows of each head: GGUF's order is (pair, half), Hugging Face's (half, pair). `row_bytes` any
// element.
void unpermute_rows(const std::byte* from, std::byte* to, int64_t heads, int64_t rows,
                    size_t row_bytes) {
  const int64_t head_dim = rows / heads;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = row / head_dim, half = row % head_dim / (head_dim / 2),
                  pair = row % (head_dim / 2);
    const int64_t source = head * head_dim + 2 * pair + half;
    std::memcpy(to + static_cast<size_t>(row) * row_bytes,
                from + static_cast<size_t>(source) * row_bytes, row_bytes);
  }
}

class GgufWeights : public WeightStore {
 public:
  GgufWeights(const GgufModel& model, const ModelConfig& config)
      : file_(model.file), config_(config), where_(model.gguf.where) {
    for (const GgufTensor& tensor : model.gguf.tensors) {
      if (tensor.name == kRopeFactors) continue;  // part of the configuration
      const std::string name = hf_name_of_gguf(tensor.name);
      if (name.empty())
        fail_input(where_ + ": tensor " + in_quotes(tensor.name),
                   "this name is not known in a Llama model", shape_text(tensor.shape));
      // Two spellings of one layer number ("blk.0", "blk.00") are the only way here.
      if (!tensors_.emplace(name, tensor).second)
        fail_input(where_ + ": tensor " + in_quotes(tensor.name),
                   "two tensors have the same meaning", name);
    }
  }

  bool has(std::string_view name) const override { return tensors_.contains(name); }
  Tensor get(std::string_view name) const override;

  void release(const Tensor& view) const override {
    const std::span<const std::byte> bytes = file_->bytes();
    const std::span<const std::byte> part(view.data(), view.bytes());
    if (std::less_equal<>()(bytes.data(), part.data()) &&
        std::less_equal<>()(part.data() + part.size(), bytes.data() + bytes.size()))
      file_->release(part);
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> result;
    for (const auto& [name, tensor] : tensors_) result.push_back(name);
    return result;
  }

  WeightListing listing() const {
    WeightListing result;
    for (const auto& [name, tensor] : tensors_) {
      const GgmlTypeInfo* info = find_ggml_type(static_cast<uint32_t>(tensor.type));
      result[name] = {where_, std::string(info->name), true, tensor.shape};
    }
    return result;
  }

 private:
  // The tensor in the file's row order.
  Tensor stored(const GgufTensor& tensor) const;
  // Heads of a tensor whose rows GGUF interleaves, 0 for all others.
  int64_t interleaved_heads(std::string_view name) const {
    if (name.find(".q_proj.") != std::string_view::npos) return config_.num_attention_heads;
    if (name.find(".k_proj.") != std::string_view::npos) return config_.num_key_value_heads;
    return 0;
  }

  std::shared_ptr<const FileBytes> file_;
  ModelConfig config_;
  std::string where_;
  std::map<std::string, GgufTensor, std::less<>> tensors_;
};

Tensor GgufWeights::stored(const GgufTensor& tensor) const {
  const std::span<const std::byte> bytes = file_->bytes().subspan(tensor.begin, tensor.bytes);
  const auto plain = [&](DType dtype) {
    const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % dtype_bytes(dtype) == 0;
    if (aligned) return Tensor(dtype, tensor.shape, file_, bytes.data());
    Tensor copy(dtype, tensor.shape);
    std::memcpy(copy.mutable_data(), bytes.data(), bytes.size());
    return copy;
  };
  if (tensor.type == GgmlType::kF32) return plain(DType::kF32);
  if (tensor.type == GgmlType::kF16) return plain(DType::kF16);
  if (tensor.type == GgmlType::kBF16) return plain(DType::kBF16);
  Tensor result(DType::kF32, tensor.shape);
  dequantize(tensor.type, bytes, result.mutable_values<float>());
  file_->release(bytes);
  return result;
}

Tensor GgufWeights::get(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    fail_input(std::string(name), "the model has no tensor of this name");
  Tensor tensor = stored(found->second);
  const int64_t heads = interleaved_heads(name);
  if (heads == 0) return tensor;
  Tensor result(tensor.dtype(), tensor.shape());
  const int64_t rows = tensor.shape()[0];
  unpermute_rows(tensor.data(), result.mutable_data(), heads, rows,
                 tensor.bytes() / static_cast<size_t>(rows));
  return result;
}

}  // namespace

GgufModel open_gguf(const fs::path& path) {
  GgufModel model;
  model.file = FileBytes::open(path);
  model.gguf = parse_gguf(model.file->bytes(), path.string());
  return model;
}

std::string hf_name_of_gguf(std::string_view name) {
  const size_t suffix_at = name.rfind('.');
  if (suffix_at == std::string_view::npos) return "";
  const std::string suffix(name.substr(suffix_at));
  if (suffix != ".weight" && suffix != ".bias") return "";
  name = name.substr(0, suffix_at);
  if (const std::string_view hf = lookup(kModelNames, name); !hf.empty())
    return std::string(hf) + suffix;
  if (!name.starts_with("blk.")) return "";
  int64_t layer = -1;
  const auto [end, error] = std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  if (error != std::errc() || layer < 0 || end == name.data() + name.size() || *end != '.')
    return "";
  const std::string_view part = name.substr(static_cast<size_t>(end - name.data()) + 1);
  const std::string_view hf = lookup(kLayerNames, part);
  if (hf.empty()) return "";
  return "model.layers." + std::to_string(layer) + "." + std::string(hf) + suffix;
}

SpecialIds gguf_special_ids(const Gguf& gguf) {
  const auto id = [&](const char* key) { return gguf.whole(key, -1); };
  return {id("tokenizer.ggml.bos_token_id"), id("tokenizer.ggml.eos_token_id"),
          id("tokenizer.ggml.unknown_token_id"), id("tokenizer.ggml.padding_token_id")};
}

Json gguf_config(const GgufModel& model) {
  const Gguf& gguf = model.gguf;
  check_family(gguf);
  const int64_t hidden = gguf.whole("llama.embedding_length");
  const int64_t heads = gguf.whole("llama.attention.head_count");
  const int64_t head_dim = head_dim_of(gguf, hidden, heads);
  const double theta = gguf.number("llama.rope.freq_base", 10000.0);
  Json config = {{"architectures", {"LlamaForCausalLM"}}, {"model_type", "llama"}};
  const SpecialIds ids = gguf_special_ids(gguf);
  if (ids.bos >= 0) config["bos_token_id"] = ids.bos;
  if (ids.eos >= 0) config["eos_token_id"] = ids.eos;
  if (ids.pad >= 0) config["pad_token_id"] = ids.pad;
  config["hidden_size"] = hidden;
  config["intermediate_size"] = gguf.whole("llama.feed_forward_length");
  config["num_hidden_layers"] = gguf.whole("llama.block_count");
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = gguf.whole("llama.attention.head_count_kv", heads);
  config["head_dim"] = head_dim;
  config["hidden_act"] = "silu";
  config["attention_bias"] = gguf.find_tensor("blk.0.attn_q.bias") != nullptr;
  config["attention_dropout"] = 0.0;
  config["mlp_bias"] = gguf.find_tensor("blk.0.ffn_gate.bias") != nullptr;
  config["max_position_embeddings"] = gguf.whole("llama.context_length");
  config["rms_norm_eps"] = gguf.number("llama.attention.layer_norm_rms_epsilon");
  config["rope_theta"] = theta;
  config["rope_scaling"] = rope_scaling_of(model, theta, head_dim);
  config["tie_word_embeddings"] = gguf.find_tensor("output.weight") == nullptr;
  config["use_cache"] = true;
  const GgufTensor* embedding = gguf.find_tensor("token_embd.weight");
  if (embedding == nullptr) fail_input(gguf.where + ": token_embd.weight", "the tensor is missing");
  config["vocab_size"] = gguf.whole("llama.vocab_size", embedding->shape[0]);
  return config;
}

ListedWeights gguf_weights(const GgufModel& model, const ModelConfig& config) {
  auto weights = std::make_unique<GgufWeights>(model, config);
  WeightListing listing = weights->listing();
  return {std::move(weights), std::move(listing)};
}

}  // namespace npu
