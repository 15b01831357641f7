// A GGUF file as a model: names, row order, configuration, tokenizer, and its Hugging Face
// directory.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "gguf_builder.h"
#include "io/gguf_model.h"
#include "io/hf_model.h"
#include "io/split_rules.h"
#include "io_test_util.h"

namespace npu {
namespace {

class GgufModelTest : public testing::Test {
 protected:
  HfModel load(const GgufBuilder& gguf) {
    publish_text(path(), gguf.bytes());
    return load_model(path().string());
  }
  std::string refused(const GgufBuilder& gguf) {
    return refusal([&] { load(gguf); });
  }
  fs::path path() const { return dir_.path() / "m.gguf"; }
  TempDir dir_;
};

TEST_F(GgufModelTest, NamesMap) {
  EXPECT_EQ(hf_name_of_gguf("token_embd.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(hf_name_of_gguf("output_norm.weight"), "model.norm.weight");
  EXPECT_EQ(hf_name_of_gguf("output.weight"), "lm_head.weight");
  EXPECT_EQ(hf_name_of_gguf("blk.0.attn_norm.weight"), "model.layers.0.input_layernorm.weight");
  EXPECT_EQ(hf_name_of_gguf("blk.31.ffn_norm.weight"),
            "model.layers.31.post_attention_layernorm.weight");
  EXPECT_EQ(hf_name_of_gguf("blk.2.attn_output.bias"), "model.layers.2.self_attn.o_proj.bias");
  EXPECT_EQ(hf_name_of_gguf("blk.2.ffn_down.weight"), "model.layers.2.mlp.down_proj.weight");
  for (const char* unknown :
       {"", "blk", "blk.", "blk..attn_q.weight", "blk.-1.attn_q.weight", "blk.1.attn_q",
        "blk.1.attn_qkv.weight", "blk.99999999999999999999.attn_q.weight", "blk.1x.attn_q.weight",
        "token_embd.scale", "x.weight"})
    EXPECT_EQ(hf_name_of_gguf(unknown), "") << unknown;
}

TEST_F(GgufModelTest, ConfigAndWeights) {
  const HfModel model = load(tiny_llama_gguf());
  EXPECT_EQ(model.config.hidden_size, 8);
  EXPECT_EQ(model.config.head_dim, 4);
  EXPECT_EQ(model.config.num_key_value_heads, 1);
  EXPECT_EQ(model.config.vocab_size, 16);
  EXPECT_EQ(model.config.rms_norm_eps, 1e-5);
  EXPECT_TRUE(model.config.tie_word_embeddings);
  EXPECT_FALSE(model.config.rope_scaling.has_value());
  EXPECT_EQ(model.weights->names().size(), 20u);
  const Tensor embedding = model.weights->get("model.embed_tokens.weight");
  EXPECT_EQ(embedding.shape(), (Shape{16, 8}));
  EXPECT_EQ(embedding.values<float>()[127], 128.0f);
  model.weights->release(embedding);
  EXPECT_TRUE(
      contains(refusal([&] { model.weights->get("lm_head.weight"); }), "no tensor of this name"));
}

// GGUF keeps the rows of each head as pairs (0, D/2), (1, D/2+1), …; Hugging Face as halves.
TEST_F(GgufModelTest, QueryAndKeyRowsReturnToHalves) {
  const HfModel model = load(tiny_llama_gguf());
  const auto first_of_rows = [&](const char* name) {
    const Tensor tensor = model.weights->get(name);
    const float start = 152;  // 128 + 8 + 8 + 8 values lie before blk.0.attn_q
    std::vector<int> rows;
    for (int64_t row = 0; row < tensor.shape()[0]; ++row)
      rows.push_back(static_cast<int>((tensor.values<float>()[row * 8] - 1 - start) / 8));
    return rows;
  };
  EXPECT_EQ(first_of_rows("model.layers.0.self_attn.q_proj.weight"),
            (std::vector<int>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(first_of_rows("model.layers.0.self_attn.k_proj.weight"),
            (std::vector<int>{8, 10, 9, 11}));
  EXPECT_EQ(first_of_rows("model.layers.0.self_attn.v_proj.weight"),
            (std::vector<int>{12, 13, 14, 15}));
}

TEST_F(GgufModelTest, QuantisedTensorsArriveAsF32) {
  GgufBuilder gguf;
  std::string blocks;
  for (int i = 0; i < 2; ++i)
    blocks += le(f16_from_f32(1.0f)) + std::string(32, static_cast<char>(i + 1));
  gguf.tensor({"output_norm.weight", {64}, 8, blocks});
  publish_text(path(), gguf.bytes());
  const ListedWeights weights = gguf_weights(open_gguf(path()), ModelConfig{});
  const Tensor tensor = weights.store->get("model.norm.weight");
  EXPECT_EQ(tensor.dtype(), DType::kF32);
  EXPECT_EQ(tensor.values<float>()[31], 1.0f);
  EXPECT_EQ(tensor.values<float>()[32], 2.0f);
  weights.store->release(tensor);  // lies outside the file: nothing to do
}

TEST_F(GgufModelTest, Refusals) {
  const auto with = [](auto change) {
    GgufBuilder gguf = tiny_llama_gguf();
    change(gguf);
    return gguf;
  };
  const auto without = [](size_t index) {
    GgufBuilder gguf = tiny_llama_gguf();
    gguf.drop_metadata(index);
    return gguf;
  };
  const struct {
    const char* label;
    GgufBuilder gguf;
    const char* refusal;
  } cases[] = {
      {"another architecture", with([](auto& g) {
         g.drop_metadata(0);
         g.text("general.architecture", "qwen2");
       }),
       "general.architecture: this architecture is not implemented; got \"qwen2\""},
      {"no architecture", without(0), "general.architecture: the metadata key is missing"},
      {"no hidden size", without(1), "llama.embedding_length: the metadata key is missing"},
      {"no inner size", without(2), "llama.feed_forward_length"},
      {"no eps", without(9), "layer_norm_rms_epsilon"},
      {"no tokenizer model", without(10), "tokenizer.ggml.model"},
      {"sentencepiece", with([](auto& g) {
         g.drop_metadata(10);
         g.text("tokenizer.ggml.model", "llama");
       }),
       "this tokenizer is not implemented; got \"llama\""},
      {"unknown pre-tokenizer", tiny_llama_gguf("tekken"),
       "tokenizer.ggml.pre: this pre-tokenizer"},
      {"no token types", without(13), "tokenizer.ggml.token_type"},
      {"types for fewer tokens", with([](auto& g) {
         g.drop_metadata(13);
         g.i32s("tokenizer.ggml.token_type", {1});
       }),
       "one entry for each token; got 1 for 16"},
      {"merge of three", with([](auto& g) {
         g.drop_metadata(14);
         g.texts("tokenizer.ggml.merges", {"a b c"});
       }),
       "two tokens with one space"},
      {"merge of one", with([](auto& g) {
         g.drop_metadata(14);
         g.texts("tokenizer.ggml.merges", {"ab"});
       }),
       "two tokens with one space"},
      {"eos beyond the vocabulary", with([](auto& g) {
         g.drop_metadata(16);
         g.u32("tokenizer.ggml.eos_token_id", 16);
       }),
       "eos_token_id: must be below"},
      {"experts", with([](auto& g) { g.u32("llama.expert_count", 8); }), "mixtures of experts"},
      {"yarn", with([](auto& g) { g.text("llama.rope.scaling.type", "yarn"); }),
       "rope type is not implemented"},
      {"partial rotation", with([](auto& g) {
         g.drop_metadata(7);
         g.u32("llama.rope.dimension_count", 2);
       }),
       "llama.rope.dimension_count: must equal the head dimension 4; got 2"},
      {"no heads", with([](auto& g) {
         g.drop_metadata(4);
         g.u32("llama.attention.head_count", 0);
       }),
       "must be positive"},
      {"added EOS", with([](auto& g) { g.flag("tokenizer.ggml.add_eos_token", true); }),
       "is not implemented"},
      {"more layers than tensors", with([](auto& g) {
         g.drop_metadata(3);
         g.u32("llama.block_count", 3);
       }),
       "model.layers.2.input_layernorm.weight: the weight is missing"},
      {"fewer layers than tensors", with([](auto& g) {
         g.drop_metadata(3);
         g.u32("llama.block_count", 1);
       }),
       "no part of the configured model"},
      {"unknown tensor", with([](auto& g) {
         g.tensor("blk.0.attn_qkv.weight", {4}, {1, 2, 3, 4});
       }),
       "tensor \"blk.0.attn_qkv.weight\": this name is not known"},
      {"one layer spelt twice",
       with([](auto& g) { g.tensor("blk.00.attn_norm.weight", {1}, {1}); }),
       "two tensors have the same meaning"},
      {"foreign rope factors", with([](auto& g) {
         g.tensor("rope_freqs.weight", {2}, {2, 3});
       }),
       "not those of Llama 3's scaling"},
      {"rope factors of another size", with([](auto& g) {
         g.tensor("rope_freqs.weight", {3}, {1, 1, 1});
       }),
       "must have head_dim/2 elements"},
      {"NaN rope factors", with([](auto& g) {
         g.tensor("rope_freqs.weight", {2}, {NAN, NAN});
       }),
       "not those of Llama 3's scaling"},
  };
  for (const auto& c : cases) {
    const std::string text = refused(c.gguf);
    EXPECT_TRUE(contains(text, c.refusal)) << c.label << ": " << text;
  }
}

TEST_F(GgufModelTest, RopeFactorsGiveTheScaling) {
  GgufBuilder gguf = tiny_llama_gguf();
  gguf.tensor("rope_freqs.weight", {2}, {1.0f, 32.0f / 32.0f});
  EXPECT_EQ(load(gguf).config.rope_scaling->factor, 1);

  // head_dim 4, theta 10000: wavelengths 2π and 200π; with theta 5e8 the second is beyond 8192.
  GgufBuilder slow = tiny_llama_gguf();
  slow.drop_metadata(8);
  slow.f32("llama.rope.freq_base", 5e8f).tensor("rope_freqs.weight", {2}, {1.0f, 8.0f});
  const ModelConfig config = load(slow).config;
  ASSERT_TRUE(config.rope_scaling.has_value());
  EXPECT_EQ(config.rope_scaling->factor, 8);
  EXPECT_EQ(config.rope_scaling->low_freq_factor, 1);
  EXPECT_EQ(config.rope_scaling->high_freq_factor, 4);
  EXPECT_EQ(config.rope_scaling->original_max_position_embeddings, 8192);
}

TEST_F(GgufModelTest, TokenizerFiles) {
  const TokenizerFiles files = load(tiny_llama_gguf()).tokenizer;
  EXPECT_EQ(files.bos_token, "<|end|>");
  EXPECT_EQ(files.eos_token_id, 0);
  EXPECT_EQ(files.pad_token, "");
  EXPECT_EQ(files.chat_template, "{{ messages }}");
  const Json json = parse_json(files.tokenizer_json, "t").take();
  EXPECT_EQ(json["model"]["merges"].dump(), R"([["a","b"]])");
  EXPECT_EQ(json["model"]["vocab"].size(), 15u);  // without the unused filler
  EXPECT_EQ(json["model"]["vocab"]["ab"], 3);
  ASSERT_EQ(json["added_tokens"].size(), 2u);
  EXPECT_EQ(json["added_tokens"][0]["content"], "<|end|>");
  EXPECT_EQ(json["added_tokens"][0]["special"], true);
  EXPECT_EQ(json["added_tokens"][1]["content"], "<tool>");
  EXPECT_EQ(json["added_tokens"][1]["special"], false);
  EXPECT_EQ(json["pre_tokenizer"]["pretokenizers"][0].dump(),
            R"({"type":"Digits","individual_digits":true})");
  EXPECT_TRUE(json["post_processor"].is_null());
}

TEST_F(GgufModelTest, PreTokenizers) {
  const auto json_of = [&](const char* pre) {
    return parse_json(load(tiny_llama_gguf(pre)).tokenizer.tokenizer_json, "t").take();
  };
  const Json llama = json_of("llama-bpe");
  const Json& split = llama["pre_tokenizer"]["pretokenizers"][0];
  EXPECT_EQ(rule_of_pattern(split["pattern"]["Regex"].get<std::string>()), SplitRule::kLlama3);
  EXPECT_EQ(llama["model"]["ignore_merges"], true);
  EXPECT_EQ(
      llama["post_processor"]["single"].dump(),
      R"([{"SpecialToken":{"id":"<|end|>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}])");
  EXPECT_EQ(llama["post_processor"]["special_tokens"]["<|end|>"]["ids"].dump(), "[0]");
  const Json qwen = json_of("qwen2");
  EXPECT_EQ(qwen["normalizer"].dump(), R"({"type":"NFC"})");
  EXPECT_EQ(rule_of_pattern(
                qwen["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"].get<std::string>()),
            SplitRule::kQwen2);
  EXPECT_TRUE(qwen["post_processor"].is_null());
  EXPECT_EQ(json_of("gpt-2")["pre_tokenizer"]["type"], "ByteLevel");
}

TEST_F(GgufModelTest, ConvertedDirectoryIsTheSameModel) {
  publish_text(path(), tiny_llama_gguf().bytes());
  const fs::path out = dir_.path() / "hf";
  convert_gguf(path(), out, DType::kF32);
  const HfModel from_gguf = load_model(path().string()), from_hf = load_model(out.string());
  ASSERT_EQ(from_hf.weights->names(), from_gguf.weights->names());
  for (const std::string& name : from_hf.weights->names()) {
    const Tensor a = from_hf.weights->get(name), b = from_gguf.weights->get(name);
    ASSERT_EQ(a.shape(), b.shape()) << name;
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0) << name;
  }
  EXPECT_EQ(parse_json(from_hf.tokenizer.tokenizer_json, "t").take(),
            parse_json(from_gguf.tokenizer.tokenizer_json, "t").take());
  EXPECT_EQ(from_hf.tokenizer.eos_token, "<|end|>");
  EXPECT_EQ(from_hf.tokenizer.eos_token_id, 0);
  EXPECT_EQ(from_hf.tokenizer.chat_template, "{{ messages }}");
  EXPECT_EQ(from_hf.config.rope_theta, from_gguf.config.rope_theta);

  convert_gguf(path(), out, DType::kBF16);  // over its own output
  EXPECT_EQ(load_model(out.string()).weights->get("model.norm.weight").dtype(), DType::kBF16);
  publish_text(out / "notes.txt", "mine");
  EXPECT_TRUE(contains(refusal([&] { convert_gguf(path(), out, DType::kF32); }),
                       "holds files of something else; got \"notes.txt\""));
  EXPECT_TRUE(
      contains(refusal([&] { convert_gguf(path(), dir_.path() / "x", DType::kI32); }), "--dtype"));
  EXPECT_FALSE(fs::exists(dir_.path() / "x"));
}

}  // namespace
}  // namespace npu
