// PEFT adapters: what is written reads back, other files stay, and each fault that peft or vLLM
// would take in silence is refused by name.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/peft.h"
#include "io/safetensors.h"
#include "io_test_util.h"

namespace npu {
namespace {

ModelConfig tiny() {
  ModelConfig config;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 2;
  config.num_key_value_heads = 1;
  config.head_dim = 4;
  config.vocab_size = 16;
  return config;
}

Tensor numbered(Shape shape, float start) {
  Tensor tensor(DType::kF32, std::move(shape));
  for (float& value : tensor.mutable_values<float>()) value = start += 0.25f;
  return tensor;
}

// Rank 2 on q_proj and down_proj.
Adapter sample() {
  Adapter adapter;
  adapter.lora = {2, 4, false, {"q_proj", "down_proj"}};
  adapter.base_model_name = "org/base";
  for (const char* layer : {"0", "1"}) {
    const std::string prefix = std::string("model.layers.") + layer;
    adapter.tensors[prefix + ".self_attn.q_proj.lora_A"] = numbered({2, 8}, 1);
    adapter.tensors[prefix + ".self_attn.q_proj.lora_B"] = numbered({8, 2}, 2);
    adapter.tensors[prefix + ".mlp.down_proj.lora_A"] = numbered({2, 12}, 3);
    adapter.tensors[prefix + ".mlp.down_proj.lora_B"] = numbered({8, 2}, 4);
  }
  return adapter;
}

std::map<std::string, Tensor> all_tensors(const SafetensorsFile& file) {
  std::map<std::string, Tensor> result;
  for (const std::string& name : file.names()) result[name] = file.get(name).clone();
  return result;
}

class Peft : public testing::Test {
 protected:
  Peft() { write_peft_adapter(path(), sample(), tiny()); }
  fs::path path() const { return dir_.path() / "adapter"; }
  fs::path config_path() const { return path() / "adapter_config.json"; }
  fs::path weights_path() const { return path() / "adapter_model.safetensors"; }
  std::string refused() {
    return refusal([&] { read_peft_adapter(path(), tiny()); });
  }
  TempDir dir_;
};

TEST_F(Peft, RoundTrip) {
  const Adapter written = sample(), read = read_peft_adapter(path(), tiny());
  EXPECT_EQ(read.base_model_name, "org/base");
  EXPECT_EQ(read.lora.rank, 2);
  EXPECT_EQ(read.lora.alpha, 4);
  EXPECT_FALSE(read.lora.rslora);
  EXPECT_EQ(read.lora.targets, written.lora.targets);
  ASSERT_EQ(read.tensors.size(), written.tensors.size());
  for (const auto& [name, tensor] : written.tensors) {
    ASSERT_EQ(read.tensors.at(name).shape(), tensor.shape());
    EXPECT_EQ(std::memcmp(read.tensors.at(name).data(), tensor.data(), tensor.bytes()), 0) << name;
  }
}

TEST_F(Peft, ConfigIsTheStableSubset) {
  EXPECT_EQ(read_text(config_path()),
            R"({
  "alpha_pattern": {},
  "auto_mapping": null,
  "base_model_name_or_path": "org/base",
  "bias": "none",
  "fan_in_fan_out": false,
  "inference_mode": true,
  "init_lora_weights": true,
  "layer_replication": null,
  "layers_pattern": null,
  "layers_to_transform": null,
  "loftq_config": {},
  "lora_alpha": 4,
  "lora_dropout": 0.0,
  "modules_to_save": null,
  "peft_type": "LORA",
  "r": 2,
  "rank_pattern": {},
  "revision": null,
  "target_modules": [
    "down_proj",
    "q_proj"
  ],
  "task_type": "CAUSAL_LM",
  "use_dora": false,
  "use_rslora": false
}
)");
}

TEST_F(Peft, WeightFile) {
  const SafetensorsFile file = SafetensorsFile::open(weights_path());
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(file.names().size(), 8u);
  EXPECT_EQ(file.names()[0], "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight");
  EXPECT_EQ(peft_name("model.layers.0.self_attn.q_proj.lora_A"),
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
}

TEST_F(Peft, OtherFilesOfTheDirectoryStay) {
  publish_text(path() / "train_log.jsonl", "{}\n");
  Adapter next = sample();
  next.lora.alpha = 2.5;
  next.lora.rslora = true;
  write_peft_adapter(path(), next, tiny());
  EXPECT_EQ(read_text(path() / "train_log.jsonl"), "{}\n");
  EXPECT_EQ(read_peft_adapter(path(), tiny()).lora.scale(), 2.5 / std::sqrt(2.0));
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(path())) ++entries;
  EXPECT_EQ(entries, 3u);  // nothing temporary is left
}

TEST_F(Peft, NonFiniteValuesAreNotWritten) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    Adapter adapter = sample();
    Tensor& tensor = adapter.tensors.at("model.layers.1.mlp.down_proj.lora_B");
    tensor.mutable_values<float>()[3] = bad;
    const std::string text =
        refusal([&] { write_peft_adapter(dir_.path() / "bad", adapter, tiny()); });
    EXPECT_TRUE(
        contains(text, "layers.1.mlp.down_proj.lora_B.weight: adapter values must be finite"))
        << text;
    EXPECT_FALSE(fs::exists(dir_.path() / "bad"));
  }
}

TEST_F(Peft, WrongTensorsAreABugOfTheCaller) {
  Adapter missing = sample();
  missing.tensors.erase("model.layers.1.mlp.down_proj.lora_B");
  EXPECT_THROW(write_peft_adapter(path(), missing, tiny()), InternalError);
  Adapter transposed = sample();
  transposed.tensors.at("model.layers.1.mlp.down_proj.lora_B") = numbered({2, 8}, 0);
  EXPECT_THROW(write_peft_adapter(path(), transposed, tiny()), InternalError);
}

TEST_F(Peft, ConfigVerdicts) {
  const Json original = read_json_file(config_path());
  const auto with = [&](const char* key, Json value) {
    Json config = original;
    config[key] = std::move(value);
    return config;
  };
  const auto without = [&](const char* key) {
    Json config = original;
    config.erase(key);
    return config;
  };
  const Json minimal = {{"peft_type", "LORA"},
                        {"r", 2},
                        {"lora_alpha", 4},
                        {"target_modules", {"q_proj", "down_proj"}}};
  const struct {
    const char* label;
    Json config;
    const char* refusal;  // "" for accepted
  } cases[] = {
      {"minimal", minimal, ""},
      {"full module names", with("target_modules", {"self_attn.q_proj", "mlp.down_proj"}), ""},
      {"full paths",
       with("target_modules", {"model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj",
                               "model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj"}),
       ""},
      {"path of another model", with("target_modules", {"transformer.h.0.self_attn.q_proj"}),
       "can't carry an adapter"},
      {"features that are off", with("eva_config", nullptr), ""},
      {"unknown but off", with("new_feature", false), ""},
      {"dropout", with("lora_dropout", 0.1), ""},
      {"gaussian", with("init_lora_weights", "gaussian"), ""},
      {"alpha with a fraction", with("lora_alpha", 4.5), ""},
      {"task null", with("task_type", nullptr), ""},
      {"no peft_type", without("peft_type"), "peft_type: the key is missing"},
      {"another method", with("peft_type", "IA3"),
       "this kind of adapter is not implemented; got \"IA3\""},
      {"no r", without("r"), "adapter_config.json: r: the key is missing"},
      {"r 0", with("r", 0), "r: must be a whole number"},
      {"r text", with("r", "2"), "r: must be a whole number"},
      {"no lora_alpha", without("lora_alpha"), "lora_alpha: the key is missing"},
      {"lora_alpha 0", with("lora_alpha", 0), "lora_alpha: must be greater than 0"},
      {"lora_alpha null", with("lora_alpha", nullptr), "lora_alpha: the key is missing"},
      {"DoRA", with("use_dora", true),
       "use_dora: this feature of PEFT is not implemented; got true"},
      {"bias", with("bias", "lora_only"), "bias: trained biases are not implemented"},
      {"modules_to_save", with("modules_to_save", {"lm_head"}), "modules_to_save: this feature"},
      {"rank_pattern", with("rank_pattern", {{"q_proj", 4}}), "rank_pattern: this feature"},
      {"alpha_pattern", with("alpha_pattern", {{"q_proj", 4}}), "alpha_pattern: this feature"},
      {"layers_to_transform", with("layers_to_transform", {0}),
       "layers_to_transform: this feature"},
      {"fan_in_fan_out", with("fan_in_fan_out", true), "fan_in_fan_out: this feature"},
      {"lora_bias", with("lora_bias", true), "lora_bias: this feature"},
      {"target_parameters", with("target_parameters", {"x"}), "target_parameters: this feature"},
      {"unknown feature", with("new_feature", "on"), "new_feature: this feature"},
      {"PiSSA", with("init_lora_weights", "pissa"), "init_lora_weights: this initialiser"},
      {"classifier", with("task_type", "SEQ_CLS"), "task_type: this task is not implemented"},
      {"no targets", without("target_modules"), "target_modules: the key is missing"},
      {"empty targets", with("target_modules", Json::array()), "must name a module"},
      {"regex", with("target_modules", ".*_proj"), "regular expressions are not implemented"},
      {"embedding", with("target_modules", {"q_proj", "embed_tokens"}),
       "can't carry an adapter here; got \"embed_tokens\""},
      {"misspelt", with("target_modules", {"q_prj", "down_proj"}), "nearest: q_proj"},
      {"target number", with("target_modules", {1}), "must be a list of module names"},
      {"more targets than tensors", with("target_modules", {"q_proj", "down_proj", "up_proj"}),
       "layers.0.mlp.up_proj.lora_A.weight: the tensor is missing; got 8 of 12"},
      {"all-linear without the tensors", with("target_modules", "all-linear"),
       "the tensor is missing"},
      {"fewer targets than tensors", with("target_modules", {"q_proj"}), "implies no such tensor"},
      {"another rank", with("r", 4), "the shape must be [4,12]; got [2,12]"},
      {"rslora text", with("use_rslora", "yes"), "must be true or false"},
      {"a list", Json::array(), "must be a JSON object"},
  };
  for (const auto& c : cases) {
    publish_text(config_path(), c.config.dump());
    const std::string text = refused();
    EXPECT_EQ(text.empty(), *c.refusal == '\0') << c.label << ": " << text;
    EXPECT_TRUE(contains(text, c.refusal)) << c.label << ": " << text;
  }
}

TEST_F(Peft, TensorVerdicts) {
  const std::string q0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  const auto rename = [q0](const std::string& name) {
    return [=](std::map<std::string, Tensor>& t) {
      t[name] = t.at(q0);
      t.erase(q0);
    };
  };
  const struct {
    const char* label;
    std::function<void(std::map<std::string, Tensor>&)> change;
    const char* refusal;  // "" for accepted
  } cases[] = {
      {"bf16", [&](auto& t) { t.at(q0) = t.at(q0).to(DType::kBF16); }, ""},
      {"f16", [&](auto& t) { t.at(q0) = t.at(q0).to(DType::kF16); }, ""},
      {"integers",
       [&](auto& t) {
         t.at(q0) = Tensor(DType::kI32, {2, 8});
       },
       "must be F32, BF16 or F16; got I32"},
      {"one missing", [&](auto& t) { t.erase(q0); },
       "q_proj.lora_A.weight: the tensor is missing; got 7 of 8"},
      {"wrong prefix",
       rename("base_model.model.transformer.layers.0.self_attn.q_proj.lora_A.weight"),
       "nearest: base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"},
      {"no prefix", rename("model.layers.0.self_attn.q_proj.lora_A.weight"),
       "implies no such tensor"},
      {"adapter name in the key",
       rename("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"),
       "nearest: base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"},
      {"no such layer", rename("base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight"),
       "there is no such layer; got layer 2 of 2"},
      {"layer written otherwise",
       rename("base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight"),
       "implies no such tensor"},
      {"no such module", rename("base_model.model.model.layers.0.self_attn.qq_proj.lora_A.weight"),
       "nearest: base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"},
      {"magnitude vector",
       [](auto& t) {
         t["base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector"] =
             Tensor(DType::kF32, {8});
       },
       "implies no such tensor"},
      {"trained head",
       [](auto& t) {
         t["base_model.model.lm_head.weight"] = Tensor(DType::kF32, {16, 8});
       },
       "implies no such tensor"},
      {"transposed",
       [&](auto& t) {
         t.at(q0) = Tensor(DType::kF32, {8, 2});
       },
       "the shape must be [2,8]; got [8,2]"},
      {"half the width",
       [&](auto& t) {
         t.at(q0) = Tensor(DType::kF32, {2, 4});
       },
       "the shape must be [2,8]; got [2,4]"},
      {"another rank",
       [&](auto& t) {
         t.at(q0) = Tensor(DType::kF32, {3, 8});
       },
       "the shape must be [2,8]; got [3,8]"},
      {"NaN", [&](auto& t) { t.at(q0).template mutable_values<float>()[5] = NAN; },
       "must be finite"},
      {"infinity after rounding to f16",
       [&](auto& t) {
         t.at(q0).template mutable_values<float>()[5] = 1e6f;
         t.at(q0) = t.at(q0).to(DType::kF16);
       },
       "must be finite; got inf at element 5"},
  };
  const auto original = all_tensors(SafetensorsFile::open(weights_path()));
  for (const auto& c : cases) {
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, tensor] : original) tensors[name] = tensor.clone();
    c.change(tensors);
    write_safetensors(weights_path(), tensors);
    const std::string text = refused();
    EXPECT_EQ(text.empty(), *c.refusal == '\0') << c.label << ": " << text;
    EXPECT_TRUE(contains(text, c.refusal)) << c.label << ": " << text;
  }
}

TEST_F(Peft, MissingFiles) {
  fs::remove(weights_path());
  EXPECT_TRUE(contains(refused(), "adapter_model.safetensors: file can't be opened")) << refused();
  publish_text(path() / "adapter_model.bin", "x");
  EXPECT_TRUE(contains(refused(), "save the adapter as safetensors")) << refused();
  fs::remove(config_path());
  EXPECT_TRUE(contains(refused(), "adapter_config.json")) << refused();
}

TEST_F(Peft, AllLinearMeansTheSeven) {
  Adapter adapter;
  adapter.lora = {1, 1, false, parse_targets("all")};
  for (const char* layer : {"0", "1"})
    for (const Linear& linear : linears()) {
      const std::string module =
          std::string("model.layers.") + layer + "." + std::string(linear.module);
      adapter.tensors[module + ".lora_A"] = numbered({1, linear.in(tiny())}, 0);
      adapter.tensors[module + ".lora_B"] = numbered({linear.out(tiny()), 1}, 0);
    }
  write_peft_adapter(path(), adapter, tiny());
  Json config = read_json_file(config_path());
  config["target_modules"] = "all-linear";
  publish_text(config_path(), config.dump());
  EXPECT_EQ(read_peft_adapter(path(), tiny()).lora.targets.size(), 7u);
}

}  // namespace
}  // namespace npu
