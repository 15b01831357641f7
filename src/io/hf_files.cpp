// Where a model lies (directory, GGUF, hub cache) and what its tokenizer files say.
#include "io/hf_files.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/config_reader.h"
#include "io/quote.h"

namespace npu {
namespace {

// Questions about paths from the command line: whatever can't be examined is not there.
bool is_file(const fs::path& path) {
  std::error_code unreadable;
  return fs::is_regular_file(path, unreadable);
}
bool is_folder(const fs::path& path) {
  std::error_code unreadable;
  return fs::is_directory(path, unreadable);
}

bool plain_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.find("..") == std::string_view::npos && name != "." &&
         std::ranges::all_of(name, allowed);
}

// "org/name" or "name" → "models--org--name"; "" for what can't be an id.
std::string cache_folder(std::string_view id) {
  const size_t slash = id.find('/');
  if (slash == std::string_view::npos)
    return plain_name(id) ? "models--" + std::string(id) : std::string();
  const std::string_view owner = id.substr(0, slash), name = id.substr(slash + 1);
  if (!plain_name(owner) || !plain_name(name)) return "";
  return "models--" + std::string(owner) + "--" + std::string(name);
}

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.pop_back();
  return text;
}

// The snapshot that refs/main names, or the only one there is; empty path when there is none.
fs::path snapshot_in(const fs::path& folder) {
  const fs::path snapshots = folder / "snapshots";
  const fs::path reference = folder / "refs" / "main";
  if (is_file(reference)) {
    const std::string revision = trimmed(read_text(reference, 1024));
    if (!plain_name(revision))
      fail_input(reference.string(), "must hold the name of a snapshot", in_quotes(revision));
    return is_folder(snapshots / revision) ? snapshots / revision : fs::path();
  }
  std::vector<fs::path> found;
  std::error_code unreadable;  // leaves the list empty
  for (const auto& entry : fs::directory_iterator(snapshots, unreadable))
    found.push_back(entry.path());
  return found.size() == 1 ? found[0] : fs::path();
}

// A special token: its text, or an object that holds it under "content".
std::string token_text(const ConfigReader& config, std::string_view key) {
  const Json* value = config.find(key);
  if (value == nullptr) return "";
  if (value->is_string()) return value->get<std::string>();
  if (value->is_object())
    return ConfigReader(*value, config.where() + ": " + std::string(key)).text("content");
  config.refuse(key, "must be a token's text");
}

// tokenizer_config.json may hold one template, or several by name of which "default" is for chat.
std::string template_of(const ConfigReader& config) {
  const Json* value = config.find("chat_template");
  if (value == nullptr) return "";
  if (value->is_string()) return value->get<std::string>();
  if (value->is_array()) {
    for (const Json& entry : *value) {
      const ConfigReader named(entry, config.where() + ": chat_template");
      if (named.text("name") == "default") return named.text("template");
    }
    config.fail_key("chat_template", "has no template named default");
  }
  config.refuse("chat_template", "must be a template or a list of named templates");
}

constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();

int32_t id_from_config(const ConfigReader& config) {
  const Json* value = config.find("eos_token_id");
  if (value == nullptr) return -1;
  // A list names every token that ends generation; the first is the document's end.
  const Json first = value->is_array() && !value->empty() ? value->front() : *value;
  if (!first.is_number_unsigned() || first.get<uint64_t>() > static_cast<uint64_t>(kMaxId))
    config.refuse("eos_token_id", "must be a token id or a list of them");
  return first.get<int32_t>();
}

// The id of the token whose text is `token` among tokenizer_config.json's added tokens.
int32_t id_of_added(const ConfigReader& config, const std::string& token) {
  const Json* added = config.find("added_tokens_decoder");
  if (added == nullptr || token.empty()) return -1;
  if (!added->is_object()) config.refuse("added_tokens_decoder", "must be an object");
  for (const auto& [id, entry] : added->items()) {
    const std::string place = config.where() + ": added_tokens_decoder";
    if (ConfigReader(entry, place).text("content", "") != token) continue;
    if (id.empty() || id.size() > 9 ||
        !std::ranges::all_of(id, [](char c) { return c >= '0' && c <= '9'; }))
      fail_input(place, "keys must be token ids", in_quotes(id));
    return std::stoi(id);
  }
  return -1;
}

std::string text_if_there(const fs::path& path) {
  return is_file(path) ? read_text(path, JsonLimits{}.max_bytes) : std::string();
}

}  // namespace

ModelPlace find_model(const std::string& where, const std::vector<fs::path>& hub_roots) {
  const fs::path path(where);
  if (is_folder(path)) return {path, false};
  if (is_file(path)) {
    if (path.extension() == ".gguf") return {path, true};
    fail_input(where, "a model is a directory, a .gguf file or an id in the hub cache",
               "another file");
  }
  const std::string folder = cache_folder(where);
  std::string searched;
  for (const fs::path& root : hub_roots) {
    if (folder.empty()) break;
    const fs::path snapshot = snapshot_in(root / folder);
    if (!snapshot.empty()) return {snapshot, false};
    searched += (searched.empty() ? "" : ", ") + root.string();
  }
  fail_input(where,
             "no such model: neither a directory, nor a .gguf file, nor an id in the hub cache",
             searched.empty() ? "" : "nothing in " + searched,
             "models are never downloaded here: fetch it first (hf download " + where + ")");
}

TokenizerFiles read_tokenizer_files(const fs::path& directory, const Json& config) {
  TokenizerFiles files;
  const fs::path json_path = directory / "tokenizer.json";
  const fs::path config_path = directory / "tokenizer_config.json";
  files.where = json_path.string();
  files.tokenizer_json = text_if_there(json_path);
  files.tokenizer_config_json = text_if_there(config_path);
  if (!files.tokenizer_config_json.empty()) {
    const Json json = parse_json(files.tokenizer_config_json, config_path.string()).take();
    const ConfigReader reader(json, config_path.string());
    files.bos_token = token_text(reader, "bos_token");
    files.eos_token = token_text(reader, "eos_token");
    files.pad_token = token_text(reader, "pad_token");
    files.chat_template = template_of(reader);
    files.eos_token_id = id_of_added(reader, files.eos_token);
  }
  // transformers 5 keeps the template in a file of its own, which wins.
  const std::string own_template = text_if_there(directory / "chat_template.jinja");
  if (!own_template.empty()) files.chat_template = own_template;
  if (files.eos_token_id < 0)
    files.eos_token_id = id_from_config(ConfigReader(config, (directory / "config.json").string()));
  return files;
}

}  // namespace npu
