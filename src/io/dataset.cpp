// load_dataset: rows of JSON lines → token ids and labels, by the rules of the row's form.
#include "io/dataset.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/chat_rows.h"
#include "io/jsonl.h"
#include "io/unicode.h"

namespace npu {
namespace {

constexpr const char* kForms =
    R"(a row is {"text"}, {"prompt","response"}, {"messages"} or {"input_ids","labels"})";

Error bad(const std::string& where, std::string what, std::string got = "", std::string hint = "") {
  return Error{ErrorKind::kBadInput, where, std::move(what), std::move(got), std::move(hint)};
}

std::string field_names(const Json& row) {
  constexpr size_t kShown = 12;
  std::string names = row.empty() ? "no fields" : "fields";
  size_t count = 0;
  for (const auto& [key, value] : row.items()) {
    if (++count > kShown) return names + " and " + std::to_string(row.size() - kShown) + " more";
    names += (count == 1 ? " \"" : ", \"") + printable(key, 40) + "\"";
  }
  return names;
}

// Turns rows into tokens. Problems of a row are values; problems of the model are thrown.
class RowReader {
 public:
  RowReader(const Tokenizer& tokenizer, const TokenizerFiles& files, const DatasetOptions& options)
      : tokenizer_(tokenizer), files_(files), options_(options) {}

  Result<TokenRow> read(const Json& row, const std::string& where) {
    Result<TokenRow> result = read_form(row, where);
    if (result) finish(result.value(), where);
    return result;
  }

 private:
  Result<TokenRow> read_form(const Json& row, const std::string& where) {
    const bool has_response = row.contains("response") || row.contains("completion");
    std::vector<std::string> forms;
    if (row.contains("input_ids")) forms.push_back("input_ids");
    if (row.contains("messages")) forms.push_back("messages");
    if (row.contains("prompt") && has_response) forms.push_back("prompt and response");
    if (row.contains("text")) forms.push_back("text");
    if (forms.size() > 1)
      return bad(where, "the row has more than one form", forms[0] + "; " + forms[1],
                 "keep the fields of one form");
    if (forms.empty()) {
      if (has_response)
        return bad(where, "a response without \"prompt\"", field_names(row), kForms);
      if (row.contains("prompt"))
        return bad(where, "a prompt without \"response\"", field_names(row), kForms);
      return bad(where, "the row has no form that is known", field_names(row), kForms);
    }
    if (forms[0] == "input_ids") return tokenised(row, where);
    if (forms[0] == "messages") return chat(row.at("messages"), where);
    return forms[0] == "text" ? text(row, where) : pair(row, where);
  }

  Result<TokenRow> text(const Json& row, const std::string& where) {
    Result<std::string> value = string_field(row, "text", where);
    if (!value) return value.error();
    if (value.value().empty()) return bad(where, "\"text\" is empty");
    TokenRow result;
    result.input_ids = tokenizer_.encode(value.value(), true);
    end_row(result.input_ids);
    result.labels = result.input_ids;
    return result;
  }

  Result<TokenRow> pair(const Json& row, const std::string& where) {
    if (row.contains("response") && row.contains("completion"))
      return bad(where, "the row has both \"response\" and \"completion\"", "",
                 "they mean the same: keep one");
    Result<std::string> prompt = string_field(row, "prompt", where);
    if (!prompt) return prompt.error();
    const std::string key = row.contains("response") ? "response" : "completion";
    Result<std::string> response = string_field(row, key, where);
    if (!response) return response.error();
    if (response.value().empty()) return bad(where, "\"" + key + "\" is empty");
    TokenRow result;
    result.input_ids = tokenizer_.encode(prompt.value(), true);
    const size_t prompt_tokens = result.input_ids.size();
    const std::vector<int32_t> ids = tokenizer_.encode(response.value(), false);
    result.input_ids.insert(result.input_ids.end(), ids.begin(), ids.end());
    end_row(result.input_ids);
    result.labels = result.input_ids;
    if (!options_.train_on_all) std::fill_n(result.labels.begin(), prompt_tokens, kNoLoss);
    return result;
  }

  Result<TokenRow> chat(const Json& messages, const std::string& where) {
    if (auto error = check_messages(messages, where)) return *error;
    Result<ChatText> chat =
        render_chat(chat_template(where), inputs(), messages, !options_.train_on_all, where);
    if (!chat) return chat.error();
    // The template has written the BOS where the model wants one.
    const std::vector<TokenAt> tokens = tokenizer_.encode_at(chat.value().text);
    TokenRow result;
    for (const TokenAt& token : tokens) result.input_ids.push_back(token.id);
    result.labels = result.input_ids;
    if (options_.train_on_all) return result;
    const std::vector<bool> trained = trained_tokens(chat.value(), tokens, tokenizer_);
    for (size_t i = 0; i < trained.size(); ++i)
      if (!trained[i]) result.labels[i] = kNoLoss;
    return result;
  }

  Result<TokenRow> tokenised(const Json& row, const std::string& where) {
    TokenRow result;
    if (auto error = read_ids(row, "input_ids", false, where, result.input_ids)) return *error;
    if (result.input_ids.empty()) return bad(where, "\"input_ids\" is empty");
    if (!row.contains("labels")) {
      result.labels = result.input_ids;
      return result;
    }
    if (auto error = read_ids(row, "labels", true, where, result.labels)) return *error;
    if (result.labels.size() != result.input_ids.size())
      return bad(where, "\"labels\" must be as long as \"input_ids\"",
                 std::to_string(result.labels.size()) + " labels for " +
                     std::to_string(result.input_ids.size()) + " ids");
    if (options_.train_on_all) result.labels = result.input_ids;
    return result;
  }

  std::optional<Error> read_ids(const Json& row, const std::string& key, bool labels,
                                const std::string& where, std::vector<int32_t>& ids) const {
    const Json& list = row.at(key);
    if (!list.is_array()) return bad(where, "\"" + key + "\" must be a list", json_kind(list));
    const int64_t vocab = options_.vocab_size > 0 ? options_.vocab_size : tokenizer_.vocab_size();
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string name = key + "[" + std::to_string(i) + "]";
      if (!list[i].is_number_integer())
        return bad(where, name + " must be a whole number", printable(list[i].dump(), 40));
      // An unsigned value above int64 would wrap around.
      const bool huge = list[i].is_number_unsigned() && list[i].get<uint64_t>() > INT32_MAX;
      const int64_t id = huge ? -1 : list[i].get<int64_t>();
      const bool no_loss = labels && !huge && id == kNoLoss;
      if (!no_loss && (id < 0 || id >= vocab))
        return bad(
            where, name + " is outside the vocabulary", list[i].dump(),
            "ids go from 0 to " + std::to_string(vocab - 1) + (labels ? "; -100 is no loss" : ""));
      ids.push_back(static_cast<int32_t>(id));
    }
    return std::nullopt;
  }

  // Appends the end token, unless the text has spelled it.
  void end_row(std::vector<int32_t>& ids) const {
    const int32_t eos = tokenizer_.eos_id();
    if (eos >= 0 && (ids.empty() || ids.back() != eos)) ids.push_back(eos);
  }

  void finish(TokenRow& row, const std::string& where) const {
    row.where = where;
    for (const int32_t id : row.input_ids) {
      if (options_.vocab_size == 0 || id < options_.vocab_size) continue;
      fail_input(where, "the tokenizer writes an id that the model lacks", std::to_string(id),
                 "config.json has vocab_size " + std::to_string(options_.vocab_size));
    }
    const auto limit = static_cast<size_t>(options_.max_length);
    if (row.input_ids.size() > limit) {
      row.cut = true;
      row.input_ids.resize(limit);
      row.labels.resize(limit);
    }
    // The first label is never the next token of anything.
    row.dropped =
        row.labels.size() < 2 || std::all_of(row.labels.begin() + 1, row.labels.end(),
                                             [](int32_t label) { return label == kNoLoss; });
  }

  const ChatTemplate& chat_template(const std::string& where) {
    if (files_.chat_template.empty())
      fail_input(where, "\"messages\" need a chat template, and the model has none", files_.where,
                 "use an instruction-tuned model, or rows of prompt and response");
    if (!template_)
      template_ = ChatTemplate::parse(files_.chat_template, files_.where + " chat_template").take();
    return *template_;
  }

  ChatTemplate::Inputs inputs() const {
    ChatTemplate::Inputs inputs;
    inputs.bos_token = files_.bos_token;
    inputs.eos_token = files_.eos_token;
    inputs.pad_token = files_.pad_token;
    inputs.date = options_.template_date;
    return inputs;
  }

  const Tokenizer& tokenizer_;
  const TokenizerFiles& files_;
  const DatasetOptions& options_;
  std::optional<ChatTemplate> template_;
};

// True when the row teaches the model to stop.
bool trains_end(const TokenRow& row, const Tokenizer& tokenizer) {
  return std::any_of(row.labels.begin(), row.labels.end(), [&](int32_t label) {
    return label != kNoLoss && (label == tokenizer.eos_id() || tokenizer.is_added(label));
  });
}

void add_warnings(Dataset& dataset, const Tokenizer& tokenizer, const JsonlSummary& summary,
                  const DatasetOptions& options) {
  const auto count = [](int64_t n) { return std::to_string(n) + (n == 1 ? " row" : " rows"); };
  const std::string limit = std::to_string(options.max_length) + " tokens";
  auto& warnings = dataset.warnings;
  if (dataset.bad > 0)
    warnings.push_back(count(dataset.bad) + " passed over as bad; the first: " + summary.first_bad);
  if (dataset.cut > 0) warnings.push_back(count(dataset.cut) + " cut at " + limit);
  if (dataset.dropped > 0)
    warnings.push_back(count(dataset.dropped) + " dropped: no trained token within " + limit);
  if (dataset.trained_tokens() == 0) {
    warnings.push_back("no row trains anything");
    return;
  }
  if (std::none_of(dataset.rows.begin(), dataset.rows.end(),
                   [&](const TokenRow& row) { return !row.dropped && trains_end(row, tokenizer); }))
    warnings.push_back(tokenizer.eos_id() < 0
                           ? "no row trains an end token: the model has none, and will not stop"
                           : "no row trains an end token: the model will not learn to stop");
}

}  // namespace

int64_t Dataset::trained_tokens() const {
  int64_t count = 0;
  for (const TokenRow& row : rows)
    for (size_t i = 1; i < row.labels.size(); ++i) count += row.labels[i] != kNoLoss;
  return count;
}

Dataset load_dataset(const std::vector<fs::path>& files, const Tokenizer& tokenizer,
                     const TokenizerFiles& files_of_tokenizer, const DatasetOptions& options) {
  NPU_CHECK(options.max_length > 0, "max_length must be positive");
  Dataset dataset;
  RowReader reader(tokenizer, files_of_tokenizer, options);
  const JsonlSummary summary =
      read_jsonl(files, options.skip_bad_rows,
                 [&](const Json& json, const std::string& where) -> std::optional<Error> {
                   Result<TokenRow> row = reader.read(json, where);
                   if (!row) return row.error();
                   dataset.cut += row.value().cut;
                   dataset.dropped += row.value().dropped;
                   dataset.rows.push_back(std::move(row.value()));
                   return std::nullopt;
                 });
  dataset.bad = summary.bad;
  dataset.sha256 = summary.sha256;
  add_warnings(dataset, tokenizer, summary, options);
  return dataset;
}

}  // namespace npu
