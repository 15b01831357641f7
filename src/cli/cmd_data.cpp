// npu-lora data: rows as tokens, the trained ones marked; what training would see.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "io/dataset.h"
#include "io/json.h"
#include "io/unicode.h"

namespace npu {
namespace {

// Text on a single line; control characters, and bytes that are no character, as \\xNN.
std::string shown(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    const auto byte = static_cast<unsigned char>(text[at]);
    if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\r') {
      out += "\\r";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (c.bytes == 1 && (byte < 0x20 || byte >= 0x7f)) {
      char hex[8];
      std::snprintf(hex, sizeof hex, "\\x%02X", byte);
      out += hex;
    } else {
      out += text.substr(at, static_cast<size_t>(c.bytes));
    }
    at += static_cast<size_t>(c.bytes);
  }
  return out;
}

// Tokens from `first` on that together are whole characters, where one alone is a part of one; else
// the one token. Trained and other tokens stay apart.
size_t tokens_of_text(const Tokenizer& tokenizer, const TokenRow& row, size_t first,
                      std::string& text) {
  constexpr size_t kMost = 8;
  text.clear();
  for (size_t i = first; i < std::min(first + kMost, row.input_ids.size()); ++i) {
    if ((row.labels[i] == kNoLoss) != (row.labels[first] == kNoLoss)) break;
    text += tokenizer.token_text(row.input_ids[i]);
    if (valid_utf8(text)) return i + 1 - first;
  }
  text = tokenizer.token_text(row.input_ids[first]);
  return 1;
}

void print_row(const Tokenizer& tokenizer, const TokenRow& row) {
  int64_t trained = 0;
  for (const int32_t label : row.labels) trained += label != kNoLoss;
  std::cout << row.where << ": " << row.input_ids.size() << " tokens, " << trained << " trained"
            << (row.cut ? ", cut" : "") << (row.dropped ? ", dropped" : "") << "\n  ";
  std::string text;
  for (size_t i = 0, count = 0; i < row.input_ids.size(); i += count) {
    count = tokens_of_text(tokenizer, row, i, text);
    text = shown(text);
    if (count > 1) text += "{" + std::to_string(count) + "}";
    std::cout << (row.labels[i] == kNoLoss ? text + "|" : "[" + text + "]");
  }
  std::cout << "\n";
}

// The packs that training would make, and the rows in them, by sequence length.
void print_packs(const Dataset& data, std::vector<int64_t> seq_lens) {
  BatcherOptions b;
  b.set_seq_lens(std::move(seq_lens));
  const Batcher batcher(data, b);
  for (const Batcher::Bucket& bucket : batcher.buckets()) {
    std::cout << ", " << bucket.sequences << " packs of " << bucket.seq_len;
    if (!b.shorter.empty()) std::cout << " (" << bucket.documents << " rows)";
  }
  std::cout << ", fill " << batcher.fill_ratio();
}

}  // namespace

int cmd_data(const Options& options) {
  if (options.flag("quiet")) set_log_level(LogLevel::kWarn);
  if (options.positional().empty()) {
    fail(ErrorKind::kUsage, "npu-lora data", "needs a file", "", "npu-lora data FILE --model M");
  }
  const HfModel model = open_model(options, /*with_weights=*/false);
  const Tokenizer tokenizer = Tokenizer::from_files(model.tokenizer);
  const DatasetOptions d = dataset_options(options, model.config);
  const Dataset data = load_dataset({options.positional().begin(), options.positional().end()},
                                    tokenizer, model.tokenizer, d);
  const size_t limit = static_cast<size_t>(options.integer("limit"));
  for (size_t i = 0; i < data.rows.size() && (limit == 0 || i < limit); ++i) {
    const TokenRow& row = data.rows[i];
    if (!options.flag("json")) {
      print_row(tokenizer, row);
      continue;
    }
    std::cout << Json{{"input_ids", row.input_ids},
                      {"labels", row.labels},
                      {"cut", row.cut},
                      {"dropped", row.dropped}}
                     .dump()
              << "\n";
  }
  for (const std::string& warning : data.warnings) log_warn("data", warning);
  if (options.flag("json")) return 0;
  std::cout << data.rows.size() << " rows, " << data.trained_tokens() << " trained tokens, "
            << data.cut << " cut, " << data.dropped << " dropped, " << data.bad << " bad";
  if (data.trained_tokens() > 0) print_packs(data, seq_lengths(options));
  std::cout << "\n";
  return 0;
}

}  // namespace npu
