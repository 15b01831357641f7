// config.json → ModelConfig, and models as directories, shards and hub-cache ids.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/hf_model.h"
#include "io/hf_weights.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io_test_util.h"

namespace npu {
namespace {

Json base() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 8},
          {"intermediate_size", 12},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"vocab_size", 16},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", true}};
}
Json with(const char* key, Json value) {
  Json config = base();
  config[key] = std::move(value);
  return config;
}
Json without(const char* key) {
  Json config = base();
  config.erase(key);
  return config;
}
Json llama3_scaling() {
  return {{"rope_type", "llama3"},
          {"factor", 32.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}
Json scaling_with(const char* key, Json value) {
  Json scaling = llama3_scaling();
  scaling[key] = std::move(value);
  return with("rope_scaling", scaling);
}
Json scaling_without(const char* key) {
  Json scaling = llama3_scaling();
  scaling.erase(key);
  return with("rope_scaling", scaling);
}

TEST(Config, Defaults) {
  Json json = base();
  for (const char* key : {"architectures", "max_position_embeddings", "rms_norm_eps", "hidden_act",
                          "tie_word_embeddings", "num_key_value_heads"})
    json.erase(key);
  const ModelConfig config = parse_model_config(json, "c");
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);  // LlamaConfig's own default
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_FALSE(config.rope_scaling.has_value());
}

TEST(Config, NullMeansAbsent) {
  Json json = base();
  for (const char* key :
       {"head_dim", "rope_scaling", "quantization_config", "num_key_value_heads", "pretraining_tp"})
    json[key] = nullptr;
  EXPECT_EQ(parse_model_config(json, "c").head_dim, 4);
  EXPECT_EQ(parse_model_config(json, "c").num_key_value_heads, 2);
}

TEST(Config, ExplicitValues) {
  EXPECT_EQ(parse_model_config(with("head_dim", 16), "c").head_dim, 16);
  EXPECT_TRUE(parse_model_config(with("attention_bias", true), "c").attention_bias);
  EXPECT_TRUE(parse_model_config(with("mlp_bias", true), "c").mlp_bias);
  EXPECT_EQ(parse_model_config(with("initializer_range", 0.5), "c").initializer_range, 0.5);
}

TEST(Config, BothSpellingsOfRope) {
  EXPECT_EQ(parse_model_config(with("rope_theta", 500000), "c").rope_theta, 500000);
  EXPECT_EQ(parse_model_config(
                with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e5}}), "c")
                .rope_theta,
            1e5);
  // The newer spelling wins.
  Json both = with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.0}});
  both["rope_theta"] = 9.0;
  both["rope_scaling"] = llama3_scaling();
  EXPECT_EQ(parse_model_config(both, "c").rope_theta, 7.0);
  EXPECT_FALSE(parse_model_config(both, "c").rope_scaling.has_value());

  Json old_type = llama3_scaling();
  old_type.erase("rope_type");
  old_type["type"] = "llama3";
  Json new_spelling = llama3_scaling();
  new_spelling["rope_theta"] = 500000.0;
  for (const Json& json : {with("rope_scaling", llama3_scaling()), with("rope_scaling", old_type),
                           with("rope_parameters", new_spelling)}) {
    const ModelConfig config = parse_model_config(json, "c");
    ASSERT_TRUE(config.rope_scaling.has_value()) << json;
    EXPECT_EQ(config.rope_scaling->factor, 32);
    EXPECT_EQ(config.rope_scaling->low_freq_factor, 1);
    EXPECT_EQ(config.rope_scaling->high_freq_factor, 4);
    EXPECT_EQ(config.rope_scaling->original_max_position_embeddings, 8192);
  }
}

TEST(Config, Refusals) {
  const struct {
    const char* label;
    Json config;
    const char* refusal;
  } cases[] = {
      {"a list", Json::array(), "must be a JSON object"},
      {"no model_type", without("model_type"), "c: model_type: the key is missing"},
      {"qwen2", with("model_type", "qwen2"),
       "c: model_type: this model type is not implemented; got \"qwen2\""},
      {"qwen3", with("model_type", "qwen3"), "got \"qwen3\""},
      {"mistral", with("model_type", "mistral"), "got \"mistral\""},
      {"qwen3_moe", with("model_type", "qwen3_moe"), "got \"qwen3_moe\""},
      {"model_type number", with("model_type", 3), "must be a string"},
      {"a classifier", with("architectures", {"LlamaForSequenceClassification"}), "architectures"},
      {"gelu", with("hidden_act", "gelu"),
       "c: hidden_act: this activation is not implemented; got \"gelu\""},
      {"quantized", with("quantization_config", {{"bits", 4}}), "quantization_config"},
      {"interleaved rope", with("rope_interleaved", true), "rope_interleaved"},
      {"attention dropout", with("attention_dropout", 0.1), "attention_dropout"},
      {"partial rope", with("partial_rotary_factor", 0.5), "partial_rotary_factor"},
      {"yarn", scaling_with("rope_type", "yarn"),
       "c: rope_scaling: rope_type: this rope type is not implemented; got \"yarn\""},
      {"dynamic", with("rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}),
       "rope_scaling: type"},
      {"linear", with("rope_parameters", {{"rope_type", "linear"}, {"factor", 2.0}}),
       "rope_parameters: rope_type"},
      {"rope without type", with("rope_parameters", {{"rope_theta", 1e4}}), "the key is missing"},
      {"rope per layer kind", with("rope_parameters", {{"full_attention", Json::object()}}),
       "the key is missing"},
      {"rope as text", with("rope_scaling", "llama3"), "must be a JSON object"},
      {"no factor", scaling_without("factor"), "factor: the key is missing"},
      {"factor 0.5", scaling_with("factor", 0.5), "must be at least 1"},
      {"factor as text", scaling_with("factor", "8"), "must be a number"},
      {"no low_freq_factor", scaling_without("low_freq_factor"),
       "low_freq_factor: the key is missing"},
      {"low_freq_factor 0", scaling_with("low_freq_factor", 0), "must be greater than 0"},
      {"high = low", scaling_with("high_freq_factor", 1.0), "greater than low_freq_factor"},
      {"no original length", scaling_without("original_max_position_embeddings"),
       "the key is missing"},
      {"original length 0", scaling_with("original_max_position_embeddings", 0), "whole number"},
      {"theta 0", with("rope_theta", 0), "rope_theta: must be greater than 0"},
      {"theta negative", with("rope_theta", -1.0), "rope_theta"},
      {"theta true", with("rope_theta", true), "must be a number"},
      {"no hidden_size", without("hidden_size"), "hidden_size: the key is missing"},
      {"hidden_size 0", with("hidden_size", 0), "from 1 to 2147483647; got 0"},
      {"hidden_size negative", with("hidden_size", -8), "hidden_size"},
      {"hidden_size 8.0", with("hidden_size", 8.0), "whole number"},
      {"hidden_size text", with("hidden_size", "8"), "whole number"},
      {"hidden_size 2^31", with("hidden_size", int64_t{1} << 31), "whole number"},
      {"hidden_size 2^64-1", with("hidden_size", ~uint64_t{0}), "whole number"},
      {"no intermediate_size", without("intermediate_size"), "intermediate_size"},
      {"no layers", with("num_hidden_layers", 0), "num_hidden_layers"},
      {"a billion layers", with("num_hidden_layers", 1'000'000'000), "from 1 to 10000"},
      {"no vocabulary", without("vocab_size"), "vocab_size"},
      {"heads do not divide hidden", with("num_attention_heads", 3),
       "num_attention_heads: must divide hidden_size"},
      {"kv heads do not divide heads", with("num_key_value_heads", 3),
       "num_key_value_heads: must divide"},
      {"kv heads 0", with("num_key_value_heads", 0), "num_key_value_heads"},
      {"odd head_dim", with("head_dim", 5), "head_dim: must be even"},
      {"heads × head_dim too large", with("head_dim", 2147483646), "below 2^31"},
      {"eps 0", with("rms_norm_eps", 0.0), "rms_norm_eps: must be greater than 0"},
      {"eps list", with("rms_norm_eps", Json::array()), "must be a number"},
      {"tie text", with("tie_word_embeddings", "yes"), "must be true or false"},
      {"bias number", with("attention_bias", 1), "must be true or false"},
      {"positions 0", with("max_position_embeddings", 0), "max_position_embeddings"},
  };
  for (const auto& c : cases) {
    const std::string text = refusal([&] { parse_model_config(c.config, "c"); });
    EXPECT_TRUE(!text.empty() && contains(text, c.refusal)) << c.label << ": " << text;
  }
}

// ---- directories ----

class ModelDirectory : public testing::Test {
 protected:
  ModelDirectory() { write_config(base()); }
  void write_config(const Json& config) { publish_text(path() / "config.json", config.dump()); }
  // Writes every expected weight of `config`, after `change` has had its way with them.
  template <class Change>
  void write_weights(const Json& config, Change change) {
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, shape] : expected_weights(parse_model_config(config, "c")))
      tensors.emplace(name, Tensor(DType::kF32, shape));
    change(tensors);
    write_safetensors(path() / "model.safetensors", tensors);
  }
  std::string refused() {
    return refusal([&] { load_model(path().string()); });
  }
  const fs::path& path() const { return dir_.path(); }
  TempDir dir_;
};

constexpr auto kUnchanged = [](auto&) {};

TEST_F(ModelDirectory, LoadsAndReleases) {
  write_weights(base(), [](auto& t) { set_element(t.at("model.norm.weight"), 3, 1.5); });
  const HfModel model = load_model(path().string());
  EXPECT_EQ(model.base_name, path().string());
  EXPECT_EQ(model.config.hidden_size, 8);
  const Tensor norm = model.weights->get("model.norm.weight");
  EXPECT_EQ(norm.values<float>()[3], 1.5f);
  model.weights->release(norm);
  EXPECT_EQ(norm.values<float>()[3], 1.5f);  // read again from the file
  EXPECT_TRUE(model.weights->has("model.layers.1.mlp.down_proj.weight"));
  EXPECT_FALSE(model.weights->has("lm_head.weight"));
  EXPECT_EQ(model.tokenizer.tokenizer_json, "");
  EXPECT_EQ(load_model(path().string(), false).weights, nullptr);
}

TEST_F(ModelDirectory, GeometryAloneNeedsNoWeights) {
  EXPECT_EQ(load_model(path().string(), false).config.vocab_size, 16);
  EXPECT_TRUE(contains(refused(), "no model.safetensors"));
  publish_text(path() / "pytorch_model.bin", "x");
  EXPECT_TRUE(contains(refused(), "save the model as safetensors"));
}

TEST_F(ModelDirectory, WeightsMustFitTheConfig) {
  const struct {
    const char* label;
    void (*change)(std::map<std::string, Tensor>&);
    const char* refusal;
  } cases[] = {
      {"one missing", [](auto& t) { t.erase("model.layers.1.mlp.up_proj.weight"); },
       "model.layers.1.mlp.up_proj.weight: the weight is missing"},
      {"embedding missing", [](auto& t) { t.erase("model.embed_tokens.weight"); },
       "the weight is missing"},
      {"transposed",
       [](auto& t) {
         t.at("model.layers.0.mlp.up_proj.weight") = Tensor(DType::kF32, {8, 12});
       },
       "the shape must be [12,8]; got [8,12]"},
      {"norm of another size",
       [](auto& t) { t.at("model.norm.weight") = Tensor(DType::kF32, {9}); },
       "the shape must be [8]; got [9]"},
      {"integers", [](auto& t) { t.at("model.norm.weight") = Tensor(DType::kI32, {8}); },
       "weights must be F32, BF16 or F16; got I32"},
      {"a third layer",
       [](auto& t) {
         t.emplace("model.layers.2.mlp.up_proj.weight", Tensor(DType::kF32, {12, 8}));
       },
       "no part of the configured model"},
      {"a bias",
       [](auto& t) { t.emplace("model.layers.0.self_attn.q_proj.bias", Tensor(DType::kF32, {8})); },
       "nearest known name: model.layers.0.self_attn.q_proj.weight"},
      {"q_norm",
       [](auto& t) {
         t.emplace("model.layers.0.self_attn.q_norm.weight", Tensor(DType::kF32, {4}));
       },
       "no part of the configured model"},
  };
  for (const auto& c : cases) {
    write_weights(base(), c.change);
    const std::string text = refused();
    EXPECT_TRUE(!text.empty() && contains(text, c.refusal)) << c.label << ": " << text;
  }
}

TEST_F(ModelDirectory, BiasesAreExpectedWhereConfigured) {
  write_config(with("attention_bias", true));
  write_weights(base(), kUnchanged);
  EXPECT_TRUE(contains(refused(), "model.layers.0.self_attn.q_proj.bias: the weight is missing"));
  write_weights(with("attention_bias", true), kUnchanged);
  EXPECT_EQ(refused(), "");
  write_config(with("mlp_bias", true));
  write_weights(with("mlp_bias", true), kUnchanged);
  EXPECT_EQ(refused(), "");
  EXPECT_TRUE(load_model(path().string()).weights->has("model.layers.1.mlp.gate_proj.bias"));
}

TEST_F(ModelDirectory, TiedHeadAndLeftoversAreIgnored) {
  write_weights(base(), [](auto& t) {
    t.emplace("lm_head.weight", Tensor(DType::kF32, {16, 8}));
    t.emplace("model.layers.0.self_attn.rotary_emb.inv_freq", Tensor(DType::kF32, {2}));
  });
  EXPECT_EQ(refused(), "");
  write_config(with("tie_word_embeddings", false));
  EXPECT_EQ(refused(), "");
  write_weights(base(), kUnchanged);
  EXPECT_TRUE(contains(refused(), "lm_head.weight: the weight is missing"));
}

class Shards : public ModelDirectory {
 protected:
  Shards() {
    std::vector<TensorSpec> specs;
    for (const auto& [name, shape] : expected_weights(parse_model_config(base(), "c")))
      specs.push_back({name, DType::kF32, shape});
    write_model_files(
        path(), specs, [](const TensorSpec& spec) { return Tensor(spec.dtype, spec.shape); }, 1000);
  }
  fs::path index() const { return path() / "model.safetensors.index.json"; }
  void change_index(const char* tensor, Json file) {
    Json json = read_json_file(index());
    json["weight_map"][tensor] = std::move(file);
    publish_text(index(), json.dump());
  }
};

TEST_F(Shards, Load) {
  EXPECT_EQ(refused(), "");
  EXPECT_EQ(load_model(path().string()).weights->names().size(), 20u);
}

TEST_F(Shards, NamesMayNotLeaveTheDirectory) {
  for (const char* name : {"/etc/x.safetensors", "../x.safetensors", "a/x.safetensors", "..", ".",
                           "", "a\\x.safetensors", "x.bin"}) {
    change_index("model.norm.weight", name);
    EXPECT_TRUE(contains(refused(), "must be a plain .safetensors file name"))
        << name << ": " << refused();
  }
  change_index("model.norm.weight", std::string("a\0b.safetensors", 15));
  EXPECT_TRUE(contains(refused(), "must be a plain .safetensors file name"));
  change_index("model.norm.weight", 3);
  EXPECT_TRUE(contains(refused(), "must be a file name; got 3"));
}

TEST_F(Shards, IndexAndFilesMustAgree) {
  change_index("model.norm.weight", "model-00001-of-00009.safetensors");
  EXPECT_TRUE(contains(refused(), "model-00001-of-00009.safetensors: file can't be opened"))
      << refused();
  change_index("model.norm.weight",
               read_json_file(index())["weight_map"]["model.embed_tokens.weight"]);
  EXPECT_TRUE(contains(refused(), "not in the file that the index names")) << refused();
  publish_text(index(), R"({"weight_map":{}})");
  EXPECT_TRUE(contains(refused(), "weight_map"));
  publish_text(index(), R"({"weight_map":[1]})");
  EXPECT_TRUE(contains(refused(), "weight_map"));
  publish_text(index(), R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})");
  EXPECT_TRUE(contains(refused(), "duplicate key"));
}

TEST_F(ModelDirectory, TokenizerFiles) {
  publish_text(path() / "tokenizer.json", "{}");
  const auto config = [&](const std::string& text) {
    publish_text(path() / "tokenizer_config.json", text);
  };
  const auto files = [&] { return load_model(path().string(), false).tokenizer; };
  config(
      R"({"bos_token":null,"eos_token":{"content":"<e>","lstrip":false},"pad_token":"<p>",)"
      R"("chat_template":"T","added_tokens_decoder":{"5":{"content":"<x>"},"7":{"content":"<e>"}}})");
  EXPECT_EQ(files().bos_token, "");
  EXPECT_EQ(files().eos_token, "<e>");
  EXPECT_EQ(files().pad_token, "<p>");
  EXPECT_EQ(files().eos_token_id, 7);
  EXPECT_EQ(files().chat_template, "T");
  config(
      R"({"chat_template":[{"name":"tool_use","template":"U"},{"name":"default","template":"D"}]})");
  EXPECT_EQ(files().chat_template, "D");
  EXPECT_EQ(files().eos_token_id, -1);
  publish_text(path() / "chat_template.jinja", "own file");
  EXPECT_EQ(files().chat_template, "own file");
  write_config(with("eos_token_id", {9, 10}));
  EXPECT_EQ(files().eos_token_id, 9);
  write_config(with("eos_token_id", 4));
  EXPECT_EQ(files().eos_token_id, 4);
  write_config(with("eos_token_id", "4"));
  EXPECT_TRUE(contains(refusal(files), "eos_token_id"));
  write_config(base());
  for (const char* bad :
       {R"({"eos_token":3})", R"({"eos_token":{}})", R"({"chat_template":3})",
        R"({"chat_template":[]})", R"({"eos_token":"a","added_tokens_decoder":[]})",
        R"({"eos_token":"a","added_tokens_decoder":{"x":{"content":"a"}}})", "[]", "{"}) {
    config(bad);
    EXPECT_NE(refusal(files), "") << bad;
  }
}

TEST_F(ModelDirectory, HubCache) {
  const fs::path snapshot = path() / "hub" / "models--org--name.v1" / "snapshots" / "abc123";
  fs::create_directories(snapshot);
  publish_text(snapshot / "config.json", base().dump());
  const std::vector<fs::path> roots = {path() / "empty", path() / "hub"};
  const HfModel model = load_model("org/name.v1", false, roots);  // the only snapshot
  EXPECT_EQ(model.path, snapshot);
  EXPECT_EQ(model.base_name, "org/name.v1");

  const fs::path main = path() / "hub" / "models--org--name.v1" / "refs" / "main";
  fs::create_directories(main.parent_path());
  publish_text(main, "abc123\n");
  EXPECT_EQ(load_model("org/name.v1", false, roots).path, snapshot);
  publish_text(main, "def456");
  EXPECT_NE(refusal([&] { load_model("org/name.v1", false, roots); }), "");
  publish_text(main, "../../../..");
  EXPECT_TRUE(
      contains(refusal([&] { load_model("org/name.v1", false, roots); }), "name of a snapshot"));
  EXPECT_TRUE(
      contains(refusal([&] { load_model("org/other", false, roots); }), (path() / "hub").string()));
  for (const char* id : {"../hub", "org/../name", "a/b/c", "org/", "/x", "", "org/na me"})
    EXPECT_TRUE(contains(refusal([&] { load_model(id, false, roots); }), "no such model")) << id;
  EXPECT_TRUE(contains(refusal([&] { load_model(std::string(5000, 'a'), false, roots); }),
                       "no such model"));
  EXPECT_TRUE(contains(refusal([&] { load_model((snapshot / "config.json").string(), false); }),
                       "another file"));
}

TEST(RandomWeights, DependOnNameAndSeedAlone) {
  const ModelConfig config = parse_model_config(with("tie_word_embeddings", false), "c");
  const auto store = random_weights(config, 1), twin = random_weights(config, 1),
             other = random_weights(config, 2);
  const char* q = "model.layers.0.self_attn.q_proj.weight";
  const char* q1 = "model.layers.1.self_attn.q_proj.weight";
  const Tensor later = [&] {
    twin->get(q1);  // another order of reading
    return twin->get(q);
  }();
  const Tensor first = store->get(q);
  EXPECT_EQ(std::memcmp(first.data(), later.data(), first.bytes()), 0);
  EXPECT_NE(std::memcmp(first.data(), store->get(q1).data(), first.bytes()), 0);
  EXPECT_NE(std::memcmp(first.data(), other->get(q).data(), first.bytes()), 0);
  EXPECT_NE(first.values<float>()[0], first.values<float>()[1]);
  EXPECT_EQ(store->names().size(), expected_weights(config).size());
  EXPECT_TRUE(contains(refusal([&] { store->get("x"); }), "no tensor of this name"));
}

TEST(RandomWeights, HaveTheInitialisersDistribution) {
  Json json = with("vocab_size", 4000);
  json["initializer_range"] = 0.02;
  json["attention_bias"] = true;
  const auto store = random_weights(parse_model_config(json, "c"), 3);
  const Tensor embedding = store->get("model.embed_tokens.weight");
  double sum = 0, squares = 0;
  for (const float value : embedding.values<float>()) {
    sum += value;
    squares += double{value} * value;
  }
  const auto n = static_cast<double>(embedding.size());
  EXPECT_NEAR(sum / n, 0, 0.02 * 4 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.02 * 4 / std::sqrt(2 * n));
  const Tensor norm = store->get("model.layers.0.input_layernorm.weight");
  for (const float value : norm.values<float>()) EXPECT_EQ(value, 1);
  const Tensor bias = store->get("model.layers.0.self_attn.q_proj.bias");
  for (const float value : bias.values<float>()) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace npu
