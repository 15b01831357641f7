// tokenizer.json, tokenizer_config.json and the chat template from GGUF metadata. GGUF names a
// pre-tokenizer only by a word; each word that is known stands here with the steps that it means.
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "io/gguf_model.h"
#include "io/quote.h"

namespace npu {
namespace {

// The split patterns as these models publish them (split_rules.h matches them letter by letter).
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json split_then_bytes(std::string_view pattern) {
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false)})}};
}

struct PreTokenizer {
  Json normalizer;  // null: none
  Json steps;
  bool ignore_merges = false;
  bool adds_bos = false;  // unless add_bos_token says otherwise
};

PreTokenizer pre_tokenizer_of(const Gguf& gguf) {
  const std::string name = gguf.text("tokenizer.ggml.pre");
  if (name == "smollm") {
    const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
    return {nullptr,
            {{"type", "Sequence"}, {"pretokenizers", Json::array({digits, byte_level(true)})}}};
  }
  if (name == "gpt-2") return {nullptr, byte_level(true)};
  if (name == "llama-bpe") return {nullptr, split_then_bytes(kLlama3Pattern), true, true};
  if (name == "qwen2") return {{{"type", "NFC"}}, split_then_bytes(kQwen2Pattern)};
  fail_input(gguf.where + ": tokenizer.ggml.pre", "this pre-tokenizer is not implemented",
             in_quotes(name), "implemented: smollm, gpt-2, llama-bpe, qwen2");
}

enum TokenType : int64_t { kControl = 3, kUserDefined = 4, kUnused = 5 };

// The vocabulary with each token's type.
class TokenTable {
 public:
  explicit TokenTable(const Gguf& gguf)
      : gguf_(gguf),
        tokens_(gguf.texts("tokenizer.ggml.tokens")),
        types_(gguf.wholes("tokenizer.ggml.token_type")) {
    if (types_.size() != tokens_.size())
      fail_input(gguf.where + ": tokenizer.ggml.token_type", "must have one entry for each token",
                 std::to_string(types_.size()) + " for " + std::to_string(tokens_.size()));
  }

  // "" for id -1.
  std::string text(int64_t id, std::string_view key) const {
    if (id == -1) return "";
    if (id < 0 || static_cast<size_t>(id) >= tokens_.size())
      fail_input(gguf_.where + ": " + std::string(key), "must be below the vocabulary's size",
                 std::to_string(id) + " of " + std::to_string(tokens_.size()));
    return tokens_[static_cast<size_t>(id)];
  }

  Json vocab() const {
    Json result = Json::object();
    // Past the object's own insertion, which looks the key up first.
    auto& members = result.get_ref<Json::object_t&>();
    std::unordered_set<std::string_view> seen;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (types_[id] == kUnused) continue;  // fills the embedding's size up; no text means it
      if (!seen.insert(tokens_[id]).second)
        fail_input(gguf_.where + ": tokenizer.ggml.tokens", "two tokens have the same text",
                   in_quotes(tokens_[id]));
      members.emplace_back(tokens_[id], id);
    }
    return result;
  }

  Json added_tokens() const {
    Json result = Json::array();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (types_[id] != kControl && types_[id] != kUserDefined) continue;
      result.push_back({{"id", id},
                        {"content", tokens_[id]},
                        {"single_word", false},
                        {"lstrip", false},
                        {"rstrip", false},
                        {"normalized", false},
                        {"special", types_[id] == kControl}});
    }
    return result;
  }

 private:
  const Gguf& gguf_;
  const std::vector<std::string>& tokens_;
  const std::vector<int64_t>& types_;
};

Json merges_of(const Gguf& gguf) {
  Json result = Json::array();
  for (const std::string& merge : gguf.texts("tokenizer.ggml.merges")) {
    const size_t space = merge.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == merge.size() ||
        merge.find(' ', space + 1) != std::string::npos)
      fail_input(gguf.where + ": tokenizer.ggml.merges",
                 "must be two tokens with one space between", in_quotes(merge));
    result.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  return result;
}

// Puts `bos` in front of the text.
Json bos_template(const std::string& bos, int64_t id) {
  const Json token = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
  const auto sequence = [](const char* name, int type) {
    return Json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  const Json token_b = {{"SpecialToken", {{"id", bos}, {"type_id", 1}}}};
  return {{"type", "TemplateProcessing"},
          {"single", Json::array({token, sequence("A", 0)})},
          {"pair", Json::array({token, sequence("A", 0), token_b, sequence("B", 1)})},
          {"special_tokens",
           {{bos, {{"id", bos}, {"ids", Json::array({id})}, {"tokens", Json::array({bos})}}}}}};
}

void check_tokenizer_keys(const Gguf& gguf) {
  const std::string model = gguf.text("tokenizer.ggml.model");
  if (model != "gpt2")
    fail_input(gguf.where + ": tokenizer.ggml.model", "this tokenizer is not implemented",
               in_quotes(model), "implemented: gpt2 (byte-level BPE)");
  for (const char* key : {"tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_space_prefix"})
    if (gguf.flag(key, false)) fail_input(gguf.where + ": " + key, "is not implemented", "true");
}

Json tokenizer_json(const Gguf& gguf, const TokenTable& table, const SpecialIds& ids) {
  const PreTokenizer pre = pre_tokenizer_of(gguf);
  Json post;
  if (gguf.flag("tokenizer.ggml.add_bos_token", pre.adds_bos)) {
    if (ids.bos < 0)
      fail_input(gguf.where + ": tokenizer.ggml.bos_token_id",
                 "the metadata key is missing, but a BOS is to be added");
    post = bos_template(table.text(ids.bos, "tokenizer.ggml.bos_token_id"), ids.bos);
  }
  Json decoder = byte_level(true);
  decoder["add_prefix_space"] = true;
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", table.added_tokens()},
          {"normalizer", pre.normalizer},
          {"pre_tokenizer", pre.steps},
          {"post_processor", post},
          {"decoder", decoder},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", pre.ignore_merges},
            {"vocab", table.vocab()},
            {"merges", merges_of(gguf)}}}};
}

Json tokenizer_config(const Gguf& gguf, const TokenTable& table, const TokenizerFiles& files,
                      const std::string& unk) {
  Json config = Json::object();
  config["add_prefix_space"] = false;
  Json decoder = Json::object();
  for (Json token : table.added_tokens()) {
    const std::string id = std::to_string(token["id"].get<int64_t>());
    token.erase("id");
    decoder[id] = std::move(token);
  }
  config["added_tokens_decoder"] = std::move(decoder);
  if (!files.bos_token.empty()) config["bos_token"] = files.bos_token;
  if (!files.chat_template.empty()) config["chat_template"] = files.chat_template;
  config["clean_up_tokenization_spaces"] = false;
  if (!files.eos_token.empty()) config["eos_token"] = files.eos_token;
  config["model_max_length"] = gguf.whole("llama.context_length");
  if (!files.pad_token.empty()) config["pad_token"] = files.pad_token;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (!unk.empty()) config["unk_token"] = unk;
  return config;
}

}  // namespace

TokenizerFiles gguf_tokenizer(const Gguf& gguf) {
  check_tokenizer_keys(gguf);
  const TokenTable table(gguf);
  const SpecialIds ids = gguf_special_ids(gguf);
  TokenizerFiles files;
  files.where = gguf.where;
  files.bos_token = table.text(ids.bos, "tokenizer.ggml.bos_token_id");
  files.eos_token = table.text(ids.eos, "tokenizer.ggml.eos_token_id");
  files.pad_token = table.text(ids.pad, "tokenizer.ggml.padding_token_id");
  files.eos_token_id = static_cast<int32_t>(ids.eos);
  files.chat_template = gguf.text("tokenizer.chat_template", "");
  const std::string unk = table.text(ids.unk, "tokenizer.ggml.unknown_token_id");
  files.tokenizer_json = tokenizer_json(gguf, table, ids).dump();
  files.tokenizer_config_json = tokenizer_config(gguf, table, files, unk).dump(2) + "\n";
  return files;
}

}  // namespace npu
