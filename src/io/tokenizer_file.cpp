// See tokenizer_file.h. The file format is that of the `tokenizers` library.
#include "io/tokenizer_file.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "io/unicode.h"

namespace npu {
namespace {

constexpr int32_t kMaxTokens = 1 << 22;  // an id beyond this is a broken file, not a vocabulary
constexpr size_t kMaxAddedToken = 512;   // bytes; bounds the search for added tokens
constexpr const char* kHint =
    "byte-level BPE as of GPT-2, SmolLM2, Llama 3 and Qwen 2 is what this program reads";

// Reads one file; every refusal names the key and the value.
class TokenizerReader {
 public:
  explicit TokenizerReader(const TokenizerFiles& files) : files_(files) {}

  TokenizerSpec read() {
    const Json root = parse_json(files_.tokenizer_json, files_.where).take();
    only_keys(root, "",
              {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
               "post_processor", "decoder", "model"});
    // truncation and padding are left out on purpose: they are wishes of whoever saved the file.
    read_model(member(root, "", "model"));
    if (root.contains("added_tokens")) read_added_tokens(root.at("added_tokens"));
    read_normalizer(optional(root, "normalizer"));
    read_pre_tokenizer(member(root, "", "pre_tokenizer"));
    read_post_processor(optional(root, "post_processor"), "post_processor");
    read_decoder(optional(root, "decoder"));
    if (!files_.tokenizer_config_json.empty()) apply_config();
    return std::move(spec_);
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& what, const Json& value,
                           const std::string& hint = kHint) const {
    constexpr size_t kShown = 120;
    fail_input(files_.where, printable(key, kShown) + " " + what, printable(value.dump(), kShown),
               hint);
  }

  static std::string join(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  }

  const Json& member(const Json& object, const std::string& path, const std::string& key) const {
    if (!object.is_object()) refuse(path.empty() ? "the file" : path, "must be an object", object);
    const auto found = object.find(key);
    if (found == object.end()) fail_input(files_.where, join(path, key) + " is missing", "", kHint);
    return *found;
  }
  static const Json& optional(const Json& object, const std::string& key) {
    static const Json null;
    const auto found = object.find(key);
    return found == object.end() ? null : *found;
  }
  const std::string& text(const Json& object, const std::string& path,
                          const std::string& key) const {
    const Json& value = member(object, path, key);
    if (!value.is_string()) refuse(join(path, key), "must be a string", value);
    return value.get_ref<const std::string&>();
  }
  bool flag(const Json& object, const std::string& path, const std::string& key,
            bool absent) const {
    const Json& value = optional(object, key);
    if (value.is_null()) return absent;
    if (!value.is_boolean()) refuse(join(path, key), "must be true or false", value);
    return value.get<bool>();
  }
  void require_flag(const Json& object, const std::string& path, const std::string& key,
                    bool wanted) const {
    if (flag(object, path, key, wanted) != wanted)
      refuse(join(path, key), "is not supported", optional(object, key));
  }
  void only_keys(const Json& object, const std::string& path,
                 std::initializer_list<std::string_view> known) const {
    if (!object.is_object()) refuse(path.empty() ? "the file" : path, "must be an object", object);
    for (const auto& [key, value] : object.items())
      if (std::find(known.begin(), known.end(), key) == known.end())
        refuse(join(path, key), "is not known", value);
  }
  int32_t token_id(const Json& value, const std::string& key) const {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
        value.get<int64_t>() >= kMaxTokens)
      refuse(key, "must be a token id from 0 to " + std::to_string(kMaxTokens - 1), value);
    return value.get<int32_t>();
  }

  void name_id(int32_t id, const std::string& spelling, const std::string& key) {
    if (static_cast<size_t>(id) >= spec_.spellings.size()) spec_.spellings.resize(size_t(id) + 1);
    if (!spec_.spellings[id].empty())
      fail_input(files_.where, printable(key, 120) + " has an id that another token has",
                 std::to_string(id));
    spec_.spellings[id] = spelling;
    spec_.ids.emplace(spelling, id);
  }

  void read_model(const Json& model) {
    only_keys(model, "model",
              {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
               "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    // Files older than tokenizers 0.10 name no type; those with merges are BPE.
    if (model.contains("type") && text(model, "model", "type") != "BPE")
      refuse("model.type", "is not supported", model.at("type"));
    const Json& dropout = optional(model, "dropout");
    if (!dropout.is_null() && dropout != 0) refuse("model.dropout", "is not supported", dropout);
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& affix = optional(model, key);
      if (!affix.is_null() && affix != "")
        refuse(std::string("model.") + key, "is not supported", affix);
    }
    require_flag(model, "model", "byte_fallback", false);
    spec_.ignore_merges = flag(model, "model", "ignore_merges", false);
    read_vocab(member(model, "model", "vocab"));
    read_bytes(model);
    read_merges(member(model, "model", "merges"));
  }

  void read_vocab(const Json& vocab) {
    if (!vocab.is_object() || vocab.empty()) refuse("model.vocab", "must be an object", vocab);
    spec_.ids.reserve(vocab.size());
    for (const auto& [spelling, id] : vocab.items()) {
      const std::string key = "model.vocab[" + Json(spelling).dump() + "]";
      if (spelling.empty()) refuse(key, "is an empty token", id);
      name_id(token_id(id, key), spelling, key);
    }
    for (const std::string& spelling : spec_.spellings) spec_.in_vocab.push_back(!spelling.empty());
  }

  void read_bytes(const Json& model) {
    bool all = true;
    for (int byte = 0; byte < 256; ++byte) {
      std::string letter;
      append_utf8(letter, byte_to_letter(static_cast<unsigned char>(byte)));
      const auto found = spec_.ids.find(letter);
      if (found == spec_.ids.end())
        all = false;
      else
        spec_.merger.set_byte(static_cast<unsigned char>(byte), found->second);
    }
    const Json& unknown = optional(model, "unk_token");
    if (all || unknown.is_null()) return;
    const auto found = unknown.is_string() ? spec_.ids.find(unknown.get_ref<const std::string&>())
                                           : spec_.ids.end();
    if (found == spec_.ids.end()) refuse("model.unk_token", "is not in the vocabulary", unknown);
    spec_.merger.set_unknown(found->second, flag(model, "model", "fuse_unk", false));
  }

  void read_merges(const Json& merges) {
    if (!merges.is_array()) refuse("model.merges", "must be a list", merges);
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const Json& merge = merges[rank];
      const std::string key = "model.merges[" + std::to_string(rank) + "]";
      std::string left, right;
      if (merge.is_string()) {
        const auto& pair = merge.get_ref<const std::string&>();
        const size_t space = pair.find(' ');
        if (space == std::string::npos || pair.find(' ', space + 1) != std::string::npos)
          refuse(key, "must be two tokens with one space between", merge);
        left = pair.substr(0, space);
        right = pair.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else {
        refuse(key, "must be a pair of tokens", merge);
      }
      const auto id_of = [&](const std::string& token) {
        const auto found = spec_.ids.find(token);
        if (found == spec_.ids.end())
          refuse(key, "names a token that is not in the vocabulary", merge);
        return found->second;
      };
      spec_.merger.add_merge(id_of(left), id_of(right), static_cast<int32_t>(rank),
                             id_of(left + right));
    }
  }

  void read_added_tokens(const Json& list) {
    if (!list.is_array()) refuse("added_tokens", "must be a list", list);
    std::unordered_set<std::string> seen;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string path = "added_tokens[" + std::to_string(i) + "]";
      const Json& entry = list[i];
      only_keys(entry, path,
                {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token;
      token.id = token_id(member(entry, path, "id"), path + ".id");
      token.content = text(entry, path, "content");
      token.single_word = flag(entry, path, "single_word", false);
      token.lstrip = flag(entry, path, "lstrip", false);
      token.rstrip = flag(entry, path, "rstrip", false);
      token.normalized = flag(entry, path, "normalized", true);
      token.special = flag(entry, path, "special", false);
      if (token.content.empty() || token.content.size() > kMaxAddedToken)
        refuse(path + ".content", "must have 1 to " + std::to_string(kMaxAddedToken) + " bytes",
               entry.at("content"));
      if (!seen.insert(token.content).second)
        refuse(path + ".content", "is given twice", entry.at("content"));
      const auto known = spec_.ids.find(token.content);
      if (known == spec_.ids.end())
        name_id(token.id, token.content, path);
      else if (known->second != token.id)
        refuse(path + ".id", "differs from the id in model.vocab, " + std::to_string(known->second),
               entry.at("id"));
      spec_.added.push_back(std::move(token));
    }
  }

  void read_normalizer(const Json& normalizer) {
    if (normalizer.is_null()) return;
    const std::string& type = text(normalizer, "normalizer", "type");
    if (type == "Sequence") {
      const Json& steps = member(normalizer, "normalizer", "normalizers");
      if (steps.is_array() && steps.empty()) return;  // how some writers spell null
      if (steps.is_array() && steps.size() == 1) return read_normalizer(steps[0]);
    }
    if (type != "NFC") refuse("normalizer", "is not supported", normalizer);
    spec_.nfc = true;
  }

  void read_pre_tokenizer(const Json& pre) {
    const std::string path = "pre_tokenizer";
    if (pre.is_null()) refuse(path, "is not supported", pre);
    if (text(pre, path, "type") != "Sequence") return read_split(pre, path, true);
    const Json& steps = member(pre, path, "pretokenizers");
    if (!steps.is_array() || steps.empty())
      refuse(path + ".pretokenizers", "must be a list of steps", steps);
    for (size_t i = 0; i < steps.size(); ++i)
      read_split(steps[i], path + ".pretokenizers[" + std::to_string(i) + "]",
                 i + 1 == steps.size());
  }

  // One step. ByteLevel must be the last one and only that: it is where text becomes bytes.
  void read_split(const Json& step, const std::string& path, bool last) {
    const std::string& type = text(step, path, "type");
    if (type == "ByteLevel") {
      if (!last) refuse(path + ".type", "must be the last step", step.at("type"));
      only_keys(step, path, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
      if (flag(step, path, "add_prefix_space", true))
        refuse(path + ".add_prefix_space", "is not supported", Json(true));
      if (flag(step, path, "use_regex", true)) spec_.splits.push_back(SplitRule::kGpt2);
      return;
    }
    if (last) refuse(path + ".type", "is not supported as the last step", step.at("type"));
    if (type == "Digits") {
      only_keys(step, path, {"type", "individual_digits"});
      if (!flag(step, path, "individual_digits", false))
        refuse(path + ".individual_digits", "is not supported", Json(false));
      spec_.splits.push_back(SplitRule::kDigits);
    } else if (type == "Split") {
      read_pattern(step, path);
    } else {
      refuse(path + ".type", "is not supported", step.at("type"));
    }
  }

  void read_pattern(const Json& step, const std::string& path) {
    only_keys(step, path, {"type", "pattern", "behavior", "invert"});
    require_flag(step, path, "invert", false);
    if (text(step, path, "behavior") != "Isolated")
      refuse(path + ".behavior", "is not supported", step.at("behavior"));
    const Json& pattern = member(step, path, "pattern");
    only_keys(pattern, path + ".pattern", {"Regex"});
    const auto rule = rule_of_pattern(text(pattern, path + ".pattern", "Regex"));
    if (!rule)
      refuse(path + ".pattern.Regex", "is not a known pattern", pattern.at("Regex"),
             "the patterns of GPT-2, Llama 3 and Qwen 2 are known, letter by letter");
    spec_.splits.push_back(*rule);
  }

  void read_post_processor(const Json& post, const std::string& path) {
    if (post.is_null()) return;
    const std::string& type = text(post, path, "type");
    if (type == "ByteLevel") return;  // moves offsets only
    if (type == "Sequence") {
      const Json& steps = member(post, path, "processors");
      if (!steps.is_array()) refuse(path + ".processors", "must be a list", steps);
      for (size_t i = 0; i < steps.size(); ++i) {
        const std::string step = path + ".processors[" + std::to_string(i) + "]";
        if (steps[i].is_object() && optional(steps[i], "type") == "Sequence")
          refuse(step + ".type", "is not supported", steps[i].at("type"));
        read_post_processor(steps[i], step);
      }
      return;
    }
    if (type != "TemplateProcessing") refuse(path + ".type", "is not supported", post.at("type"));
    read_template(post, path);
  }

  // TemplateProcessing: special tokens, then the text.
  void read_template(const Json& post, const std::string& path) {
    const Json& single = member(post, path, "single");
    if (!spec_.bos.empty()) refuse(path, "is given twice", single);
    bool after_text = false;
    if (!single.is_array() || single.empty()) refuse(path + ".single", "must be a list", single);
    for (const Json& piece : single) {
      if (piece.is_object() && piece.contains("Sequence") && !after_text) {
        after_text = true;
      } else if (piece.is_object() && piece.contains("SpecialToken") && !after_text) {
        const std::string& name = text(piece.at("SpecialToken"), path + ".single", "id");
        read_template_token(post, path, name);
      } else {
        refuse(path + ".single", "must be special tokens, then the text", single);
      }
    }
    if (!after_text) refuse(path + ".single", "does not hold the text", single);
  }

  void read_template_token(const Json& post, const std::string& path, const std::string& name) {
    const std::string key = path + ".special_tokens";
    const Json& token = member(member(post, path, "special_tokens"), key, name);
    const Json& ids = member(token, key, "ids");
    if (!ids.is_array()) refuse(key + ".ids", "must be a list", ids);
    for (const Json& id : ids) {
      const int32_t bos = token_id(id, key + ".ids");
      if (static_cast<size_t>(bos) >= spec_.spellings.size() || spec_.spellings[bos].empty())
        refuse(key + ".ids", "names an id that no token has", id);
      spec_.bos.push_back(bos);
    }
  }

  void read_decoder(const Json& decoder) const {
    if (decoder.is_null()) return;
    if (text(decoder, "decoder", "type") != "ByteLevel")
      refuse("decoder.type", "is not supported", decoder.at("type"));
  }

  // tokenizer_config.json: where it says whether to add a BOS, transformers lets it overrule
  // tokenizer.json.
  void apply_config() {
    const Json config =
        parse_json(files_.tokenizer_config_json, files_.where + " (tokenizer_config)").take();
    if (!config.is_object()) refuse("tokenizer_config", "must be an object", config);
    if (flag(config, "tokenizer_config", "add_eos_token", false))
      refuse("tokenizer_config.add_eos_token", "is not supported", Json(true),
             "set it to false: the end token is added to each row of the data anyway");
    if (optional(config, "add_bos_token").is_null()) return;
    spec_.bos.clear();
    if (!flag(config, "tokenizer_config", "add_bos_token", false) || files_.bos_token.empty())
      return;
    const auto found = spec_.ids.find(files_.bos_token);
    if (found == spec_.ids.end())
      refuse("bos_token", "is not in the vocabulary", Json(files_.bos_token));
    spec_.bos.push_back(found->second);
  }

  const TokenizerFiles& files_;
  TokenizerSpec spec_;
};

}  // namespace

TokenizerSpec parse_tokenizer_files(const TokenizerFiles& files) {
  return TokenizerReader(files).read();
}

}  // namespace npu
