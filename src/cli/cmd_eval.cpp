// npu-lora eval: choice by log-probability, keyword in generated text, or held-out loss, offline.
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/scoring.h"
#include "io/eval_rows.h"
#include "train/lora_state.h"

namespace npu {
namespace {

constexpr size_t kMostChoices = 16;

struct Evaluation {
  double accuracy = 0;
  bool has_accuracy = false;
  int64_t n = 0;
  double nll = 0;  // mean nats: of the right choice, or per trained token
  std::vector<Json> rows;
};

using Progress = std::function<bool(size_t done, size_t total)>;

// Where nobody looks, or nobody wants it, none is drawn.
Progress progress_bar(const Options& options) {
  const bool drawn = !options.flag("quiet") && !options.flag("json") && isatty(STDERR_FILENO) != 0;
  return [drawn](size_t done, size_t total) {
    if (drawn) {
      std::cerr << "\r\033[Keval " << done << "/" << total << (done == total ? "\n" : "")
                << std::flush;
    }
    return true;
  };
}

// An option that the mode has no use for is a mistake.
void refuse_other_modes(const Options& options, const std::string& mode) {
  constexpr std::pair<const char*, std::string_view> kOnly[] = {
      {"choice", "choice"}, {"max-new-tokens", "keyword"}, {"train-on", "nll"}, {"date", "nll"}};
  for (const auto& [name, only] : kOnly) {
    if (!options.given(name) || mode == only) continue;
    fail(ErrorKind::kUsage, std::string("--") + name, "has no use in --mode " + mode, "",
         "it belongs to --mode " + std::string(only));
  }
}

std::vector<std::string> choices_of(const Options& options, const std::vector<EvalRow>& rows) {
  std::vector<std::string> choices = options.list("choice");
  if (choices.empty()) {
    for (const EvalRow& row : rows) {
      if (std::find(choices.begin(), choices.end(), row.response) == choices.end()) {
        choices.push_back(row.response);
      }
      if (choices.size() > kMostChoices) {
        fail(ErrorKind::kUsage, "--choice", "the data has more than 16 distinct responses", "",
             "name the choices, or use --mode nll or --mode keyword");
      }
    }
  }
  for (const EvalRow& row : rows) {
    if (std::find(choices.begin(), choices.end(), row.response) == choices.end()) {
      fail_input(row.where, "the response is none of the choices", "'" + row.response + "'",
                 "add --choice for it");
    }
  }
  return choices;
}

// prompt (cut at its start when too long) followed by a choice's tokens.
std::vector<int32_t> prompt_tokens(const Tokenizer& tokenizer, const EvalRow& row, int64_t room,
                                   int64_t& cut) {
  std::vector<int32_t> ids = tokenizer.encode(row.prompt, true);
  if (static_cast<int64_t>(ids.size()) > room) {
    ids.erase(ids.begin(), ids.end() - room);
    ++cut;
  }
  if (ids.empty()) fail_input(row.where, "the prompt has no tokens");
  return ids;
}

// Log-probability of every choice after every prompt. One-token choices of a prompt share one
// document: they are read off the same row.
std::vector<std::vector<double>> choice_log_probs(ModelRunner& runner, const Tokenizer& tokenizer,
                                                  const std::vector<EvalRow>& rows,
                                                  const std::vector<std::string>& choices,
                                                  const Progress& progress) {
  std::vector<std::vector<int32_t>> choice_ids;
  size_t longest = 0;
  for (const std::string& choice : choices) {
    choice_ids.push_back(tokenizer.encode(choice, false));
    if (choice_ids.back().empty()) fail(ErrorKind::kUsage, "--choice", "has no tokens");
    longest = std::max(longest, choice_ids.back().size());
  }
  const int64_t room = runner.seq_len() - static_cast<int64_t>(longest);
  if (room < 1) fail(ErrorKind::kUsage, "--seq-len", "too short for the choices");
  std::vector<ScoreDocument> documents;
  int64_t cut = 0;
  for (const EvalRow& row : rows) {
    const std::vector<int32_t> prompt = prompt_tokens(tokenizer, row, room, cut);
    const int32_t last = static_cast<int32_t>(prompt.size()) - 1;
    if (longest == 1) {
      ScoreDocument document{prompt, {}};
      for (const auto& ids : choice_ids) document.targets.push_back({last, ids[0]});
      documents.push_back(std::move(document));
      continue;
    }
    for (const auto& ids : choice_ids) {
      ScoreDocument document{prompt, {}};
      for (size_t i = 0; i < ids.size(); ++i) {
        document.targets.push_back({last + static_cast<int32_t>(i), ids[i]});
      }
      document.input_ids.insert(document.input_ids.end(), ids.begin(), ids.end());
      documents.push_back(std::move(document));
    }
  }
  if (cut > 0)
    log_warn("eval", std::to_string(cut) + " prompts were cut at their start to --seq-len");
  const auto scores = score_documents(runner, documents, progress).take();
  std::vector<std::vector<double>> log_probs(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t c = 0; c < choices.size(); ++c) {
      if (longest == 1) {
        log_probs[r].push_back(scores[r][c].log_prob);
        continue;
      }
      double sum = 0;
      for (const TokenScore& s : scores[r * choices.size() + c]) sum += s.log_prob;
      log_probs[r].push_back(sum);
    }
  }
  return log_probs;
}

Evaluation evaluate_choices(const Options& options, ModelRunner& runner, const Tokenizer& tokenizer,
                            const std::vector<EvalRow>& rows) {
  const std::vector<std::string> choices = choices_of(options, rows);
  const auto log_probs = choice_log_probs(runner, tokenizer, rows, choices, progress_bar(options));
  Evaluation out;
  int64_t right = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const size_t answer = static_cast<size_t>(
        std::max_element(log_probs[r].begin(), log_probs[r].end()) - log_probs[r].begin());
    const size_t truth = static_cast<size_t>(
        std::find(choices.begin(), choices.end(), rows[r].response) - choices.begin());
    right += answer == truth;
    out.nll -= log_probs[r][truth];
    Json row = {{"where", rows[r].where},
                {"answer", choices[answer]},
                {"response", rows[r].response},
                {"log_probs", Json::object()}};
    for (size_t c = 0; c < choices.size(); ++c) row["log_probs"][choices[c]] = log_probs[r][c];
    out.rows.push_back(std::move(row));
  }
  out.n = static_cast<int64_t>(rows.size());
  out.has_accuracy = true;
  out.accuracy = static_cast<double>(right) / static_cast<double>(rows.size());
  out.nll /= static_cast<double>(rows.size());
  return out;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Greedy generation, all rows a token at a time: without a key/value cache every token costs a
// forward pass, which packing many rows into one pass makes bearable.
Evaluation evaluate_keywords(const Options& options, ModelRunner& runner,
                             const Tokenizer& tokenizer, const std::vector<EvalRow>& rows) {
  const int64_t new_tokens = options.integer("max-new-tokens", 1, runner.seq_len() - 1);
  int64_t cut = 0;
  std::vector<std::vector<int32_t>> sequences;
  std::vector<std::vector<int32_t>> generated(rows.size());
  for (const EvalRow& row : rows) {
    sequences.push_back(prompt_tokens(tokenizer, row, runner.seq_len() - new_tokens, cut));
  }
  if (cut > 0)
    log_warn("eval", std::to_string(cut) + " prompts were cut at their start to --seq-len");
  const Progress progress = progress_bar(options);
  std::vector<size_t> open(rows.size());
  for (size_t i = 0; i < open.size(); ++i) open[i] = i;
  for (int64_t t = 0; t < new_tokens && !open.empty(); ++t) {
    std::vector<ScoreDocument> documents;
    for (const size_t r : open) {
      documents.push_back({sequences[r], {{static_cast<int32_t>(sequences[r].size()) - 1, 0}}});
    }
    const auto scores = score_documents(runner, documents).take();
    std::vector<size_t> still_open;
    for (size_t i = 0; i < open.size(); ++i) {
      const int32_t token = scores[i][0].argmax;
      if (token == tokenizer.eos_id()) continue;
      sequences[open[i]].push_back(token);
      generated[open[i]].push_back(token);
      still_open.push_back(open[i]);
    }
    open = std::move(still_open);
    progress(static_cast<size_t>(t) + 1, static_cast<size_t>(new_tokens));
  }
  Evaluation out;
  int64_t right = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::string text = tokenizer.decode(generated[r]);
    std::string keyword = rows[r].response;
    keyword.erase(0, keyword.find_first_not_of(" \n\t"));
    if (keyword.empty()) fail_input(rows[r].where, "the response holds no keyword");
    const bool hit = lower(text).find(lower(keyword)) != std::string::npos;
    right += hit;
    out.rows.push_back(
        {{"where", rows[r].where}, {"text", text}, {"keyword", keyword}, {"hit", hit}});
  }
  out.n = static_cast<int64_t>(rows.size());
  out.has_accuracy = true;
  out.accuracy = static_cast<double>(right) / static_cast<double>(rows.size());
  return out;
}

Evaluation evaluate_loss(const Options& options, ModelRunner& runner, const Dataset& data) {
  std::vector<ScoreDocument> documents;
  std::vector<const TokenRow*> kept;
  const size_t limit = static_cast<size_t>(options.integer("limit"));
  for (const TokenRow& row : data.rows) {
    if (row.dropped || (limit > 0 && kept.size() >= limit)) continue;
    documents.push_back(loss_document(row));
    kept.push_back(&row);
  }
  Evaluation out;
  const auto scores = score_documents(runner, documents, progress_bar(options)).take();
  for (size_t d = 0; d < scores.size(); ++d) {
    Json row = {{"where", kept[d]->where}, {"token_log_probs", Json::array()}};
    for (const TokenScore& score : scores[d]) {
      out.nll -= score.log_prob;
      ++out.n;
      row["token_log_probs"].push_back(score.log_prob);
    }
    out.rows.push_back(std::move(row));
  }
  if (out.n > 0) out.nll /= static_cast<double>(out.n);
  return out;
}

void report(const Options& options, const Evaluation& e, const std::string& mode) {
  if (options.has("rows")) {
    std::string text;
    for (const Json& row : e.rows) text += row.dump() + "\n";
    publish_text(options.text("rows"), text);
  }
  if (options.flag("json")) {
    Json json = {{"mode", mode}, {"n", e.n}};
    json["accuracy"] = e.has_accuracy ? Json(e.accuracy) : Json(nullptr);
    json["nll"] = mode == "keyword" ? Json(nullptr) : Json(e.nll);
    std::cout << json.dump() << "\n";
    return;
  }
  if (e.has_accuracy) std::cout << "accuracy " << std::setprecision(4) << e.accuracy << "  ";
  if (mode != "keyword") std::cout << "nll " << std::setprecision(5) << e.nll << "  ";
  std::cout << "n " << e.n << (mode == "nll" ? " tokens" : " rows") << "\n";
}

}  // namespace

int cmd_eval(const Options& options) {
  if (options.flag("quiet") || options.flag("json")) set_log_level(LogLevel::kWarn);
  const std::string mode = options.choice("mode", {"choice", "keyword", "nll"});
  refuse_other_modes(options, mode);
  const HfModel model = open_model(options);
  const Tokenizer tokenizer = Tokenizer::from_files(model.tokenizer);
  if (options.list("data").empty()) options.text("data");  // reports that it is required
  const std::vector<std::string> names = options.list("data");
  const std::vector<fs::path> files(names.begin(), names.end());

  std::vector<EvalRow> rows;
  Dataset data;
  if (mode == "nll") {
    data = load_dataset(files, tokenizer, model.tokenizer, dataset_options(options, model.config));
    report_dataset(data, "data");
  } else {
    rows = load_eval_rows(files, options.integer("skip-bad-rows"));
    const size_t limit = static_cast<size_t>(options.integer("limit"));
    if (limit > 0 && rows.size() > limit) rows.resize(limit);
    if (rows.empty()) fail_input(names.front(), "has no rows");
  }

  LoraSpec lora;
  lora.targets.clear();
  std::vector<Parameter> parameters;
  if (options.has("adapter")) {
    const Adapter adapter = read_peft_adapter(options.text("adapter"), model.config);
    lora = adapter.lora;
    parameters = lora_from_tensors(model.config, lora, adapter.tensors);
  }
  SessionOptions session = session_options(options, lora, model.config);
  session.graphs.train = false;
  session.graphs.eval = true;
  session.graphs.layer.batch = options.integer("batch", 1, 4096);
  // A batch of questions asks for few rows; more of them pass the head in turns.
  constexpr int64_t kAsked = 64;
  for (const int64_t seq_len : seq_lengths(options)) {
    session.graphs.loss_rows =
        loss_rows_option(options, {&kAsked, 1}, session.graphs.layer.batch * seq_len);
    if (seq_len == session.graphs.layer.seq_len) break;
    session.graphs.shorter.push_back({seq_len, session.graphs.loss_rows});
  }
  resolve_placement(model.config, session, *model.weights);
  auto runner = start_runner(model.config, session, *model.weights,
                             options.flag("quiet") || options.flag("json"));
  runner->set_adapter(parameters);

  const Evaluation evaluation =
      mode == "choice"    ? evaluate_choices(options, *runner, tokenizer, rows)
      : mode == "keyword" ? evaluate_keywords(options, *runner, tokenizer, rows)
                          : evaluate_loss(options, *runner, data);
  report(options, evaluation, mode);
  return 0;
}

}  // namespace npu
