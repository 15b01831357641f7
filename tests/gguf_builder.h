// Makes GGUF bytes for tests: metadata and tensors in order, each field open to be wrong.
#pragma once

#include <string>
#include <vector>

#include "io_test_util.h"

namespace npu {

enum GgufTestType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

inline std::string gguf_string(const std::string& text) { return le<uint64_t>(text.size()) + text; }

class GgufBuilder {
 public:
  uint32_t magic = 0x46554747;
  uint32_t version = 3;
  int64_t count_error = 0;  // added to both counts
  size_t alignment = 32;
  size_t cut = 0;  // bytes missing at the end

  // A metadata entry from its encoded value.
  GgufBuilder& raw(const std::string& key, uint32_t type, const std::string& value) {
    metadata_.push_back(gguf_string(key) + le(type) + value);
    return *this;
  }
  GgufBuilder& u32(const std::string& key, uint32_t value) { return raw(key, kU32, le(value)); }
  GgufBuilder& f32(const std::string& key, float value) { return raw(key, kF32, le(value)); }
  GgufBuilder& flag(const std::string& key, bool value) {
    return raw(key, kBool, le<uint8_t>(value));
  }
  GgufBuilder& text(const std::string& key, const std::string& value) {
    return raw(key, kString, gguf_string(value));
  }
  GgufBuilder& texts(const std::string& key, const std::vector<std::string>& values) {
    std::string bytes = le<uint32_t>(kString) + le<uint64_t>(values.size());
    for (const std::string& value : values) bytes += gguf_string(value);
    return raw(key, kArray, bytes);
  }
  GgufBuilder& i32s(const std::string& key, const std::vector<int32_t>& values) {
    std::string bytes = le<uint32_t>(kI32) + le<uint64_t>(values.size());
    for (const int32_t value : values) bytes += le(value);
    return raw(key, kArray, bytes);
  }

  // `dims` in the file's order (innermost first).
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type = 0;
    std::string data;
    int64_t offset = -1;     // -1: after the tensor before
    int64_t dim_count = -1;  // -1: as many as there are
  };
  GgufBuilder& tensor(Tensor tensor) {
    tensors_.push_back(std::move(tensor));
    return *this;
  }
  GgufBuilder& tensor(const std::string& name, const std::vector<uint64_t>& dims,
                      const std::vector<float>& values) {
    std::string data;
    for (const float value : values) data += le(value);
    return tensor({name, dims, 0, data});
  }
  void drop_metadata(size_t index) {
    metadata_.erase(metadata_.begin() + static_cast<long>(index));
  }

  std::string bytes() const {
    std::string head = le(magic) + le(version) +
                       le<uint64_t>(tensors_.size() + static_cast<uint64_t>(count_error)) +
                       le<uint64_t>(metadata_.size() + static_cast<uint64_t>(count_error));
    for (const std::string& entry : metadata_) head += entry;
    std::string data;
    for (const Tensor& tensor : tensors_) {
      head += gguf_string(tensor.name);
      head += le<uint32_t>(static_cast<uint32_t>(
          tensor.dim_count < 0 ? static_cast<int64_t>(tensor.dims.size()) : tensor.dim_count));
      for (const uint64_t dim : tensor.dims) head += le(dim);
      head += le(tensor.type) +
              le<uint64_t>(tensor.offset < 0 ? data.size() : static_cast<uint64_t>(tensor.offset));
      data += tensor.data;
      pad(data);
    }
    pad(head);
    std::string all = head + data;
    all.resize(all.size() - cut);
    return all;
  }

 private:
  void pad(std::string& bytes) const {
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
  }
  std::vector<std::string> metadata_;
  std::vector<Tensor> tensors_;
};

// A Llama of two layers (hidden 8, 2 heads, 1 key/value head, head_dim 4, inner 12, 16 tokens)
// whose f32 weights are small whole numbers that tell their position.
inline GgufBuilder tiny_llama_gguf(const std::string& pre = "smollm") {
  GgufBuilder gguf;
  gguf.text("general.architecture", "llama")
      .u32("llama.embedding_length", 8)
      .u32("llama.feed_forward_length", 12)
      .u32("llama.block_count", 2)
      .u32("llama.attention.head_count", 2)
      .u32("llama.attention.head_count_kv", 1)
      .u32("llama.context_length", 64)
      .u32("llama.rope.dimension_count", 4)
      .f32("llama.rope.freq_base", 10000)
      .f32("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .text("tokenizer.ggml.model", "gpt2")
      .text("tokenizer.ggml.pre", pre)
      .texts("tokenizer.ggml.tokens", {"<|end|>", "a", "b", "ab", "[PAD0]", "<tool>", "c", "d", "e",
                                       "f", "g", "h", "i", "j", "k", "l"})
      .i32s("tokenizer.ggml.token_type", {3, 1, 1, 1, 5, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1})
      .texts("tokenizer.ggml.merges", {"a b"})
      .u32("tokenizer.ggml.bos_token_id", 0)
      .u32("tokenizer.ggml.eos_token_id", 0)
      .text("tokenizer.chat_template", "{{ messages }}");
  float next = 0;
  const auto weights = [&](uint64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = ++next;
    return values;
  };
  gguf.tensor("token_embd.weight", {8, 16}, weights(128))
      .tensor("output_norm.weight", {8}, weights(8));
  for (int layer = 0; layer < 2; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    gguf.tensor(prefix + "attn_norm.weight", {8}, weights(8))
        .tensor(prefix + "ffn_norm.weight", {8}, weights(8))
        .tensor(prefix + "attn_q.weight", {8, 8}, weights(64))
        .tensor(prefix + "attn_k.weight", {8, 4}, weights(32))
        .tensor(prefix + "attn_v.weight", {8, 4}, weights(32))
        .tensor(prefix + "attn_output.weight", {8, 8}, weights(64))
        .tensor(prefix + "ffn_gate.weight", {8, 12}, weights(96))
        .tensor(prefix + "ffn_up.weight", {8, 12}, weights(96))
        .tensor(prefix + "ffn_down.weight", {12, 8}, weights(96));
  }
  return gguf;
}

}  // namespace npu
