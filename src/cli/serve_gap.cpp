// npu-lora check --serve-gap: the same tokens through the training graph under each rounding policy
// and through the engine that will serve the adapter.
#include <cmath>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/random.h"
#include "cli/commands.h"
#include "cli/scoring.h"
#include "io/http.h"
#include "io/serving.h"
#include "train/lora_state.h"
#include "train/serve_gap.h"

namespace npu {
namespace {

constexpr size_t kRandomSequences = 4;
constexpr int64_t kRandomLength = 128;  // at most

// NPU_LORA_PYTHON, else the active virtual environment's, else the system's.
std::string python_interpreter() {
  if (const std::string python = environment("NPU_LORA_PYTHON"); !python.empty()) return python;
  if (const std::string venv = environment("VIRTUAL_ENV"); !venv.empty())
    return venv + "/bin/python";
  return "python3";
}

struct GapInputs {
  HfModel model;
  LoraSpec lora;
  std::vector<Parameter> parameters;  // B = 0 without --adapter
  Prompts prompts;
};

Prompts random_prompts(const ModelConfig& config, int64_t seq_len, uint64_t seed) {
  const RandomStream random(seed, "serve gap");
  Prompts prompts(kRandomSequences);
  uint64_t next = 0;
  for (std::vector<int32_t>& prompt : prompts) {
    for (int64_t i = 0; i < std::min(seq_len, kRandomLength); ++i) {
      prompt.push_back(
          static_cast<int32_t>(random.bits(next++) % static_cast<uint64_t>(config.vocab_size)));
    }
  }
  return prompts;
}

Prompts read_prompts(const Options& options, const HfModel& model) {
  const uint64_t seed = static_cast<uint64_t>(options.integer("seed"));
  const std::vector<std::string> files = options.list("data");
  if (files.empty()) return random_prompts(model.config, options.integer("seq-len", 2), seed);
  const Dataset data =
      load_dataset({files.begin(), files.end()}, Tokenizer::from_files(model.tokenizer),
                   model.tokenizer, dataset_options(options, model.config));
  const size_t limit = static_cast<size_t>(options.integer("limit"));
  Prompts prompts;
  for (const TokenRow& row : data.rows) {
    if (row.input_ids.size() < 2 || (limit > 0 && prompts.size() >= limit)) continue;
    prompts.push_back(row.input_ids);
  }
  if (prompts.empty()) fail_input("--data", "no row has two tokens");
  return prompts;
}

GapInputs read_inputs(const Options& options) {
  GapInputs in;
  in.model = open_model(options);
  in.lora = lora_options(options);
  if (options.has("adapter")) {
    const Adapter adapter = read_peft_adapter(options.text("adapter"), in.model.config);
    in.lora = adapter.lora;
    refuse_other_lora(options, "--adapter", in.lora);
    in.parameters = lora_from_tensors(in.model.config, in.lora, adapter.tensors);
  } else {
    in.parameters = init_lora(in.model.config, in.lora, 0);
  }
  in.prompts = read_prompts(options, in.model);
  return in;
}

ServedLogProbs ask_engine(const Options& options, const GapInputs& in) {
  const std::string where = options.text("serve-gap");
  const double seconds = options.real("serve-timeout");
  if (seconds <= 0 || seconds > kMostHttpSeconds) {
    fail(ErrorKind::kUsage, "--serve-timeout", "must be over 0 and at most 1000000 seconds",
         options.text("serve-timeout"));
  }
  if (where == "transformers") {
    if (!fs::is_directory(in.model.path)) {
      fail(ErrorKind::kUsage, "--model", "transformers needs a model directory",
           in.model.path.string(), "npu-lora convert makes one from a .gguf file");
    }
    const fs::path adapter = options.has("adapter") ? options.text("adapter") : "";
    return transformers_log_probs({python_interpreter(), in.model.path, adapter, seconds},
                                  in.prompts);
  }
  if (!where.starts_with("http://") && !where.starts_with("https://")) {
    fail(ErrorKind::kUsage, "--serve-gap", "must be transformers or http://host:port",
         "'" + where + "'");
  }
  ServingEndpoint endpoint;
  endpoint.url = where;
  endpoint.seconds = seconds;
  endpoint.api_key = environment("NPU_LORA_API_KEY");
  if (options.has("serve-model")) {
    endpoint.model = options.text("serve-model");
  } else if (options.has("adapter")) {
    // The server may list the base model alone and resolve adapters when they are asked for.
    fail(ErrorKind::kUsage, "--serve-model", "is needed with --adapter", "",
         "give the name under which the server has the adapter");
  }
  return vllm_log_probs(endpoint, in.prompts);
}

std::vector<double> flat(const std::vector<std::vector<double>>& rows) {
  std::vector<double> out;
  for (const std::vector<double>& row : rows) out.insert(out.end(), row.begin(), row.end());
  return out;
}

// Log-probabilities of every next token, from the graphs that training evaluates with.
std::vector<double> training_log_probs(const SessionOptions& session, const GapInputs& in,
                                       bool quiet) {
  const auto runner = start_runner(in.model.config, session, *in.model.weights, quiet);
  runner->set_adapter(in.parameters);
  std::vector<ScoreDocument> documents;
  for (const std::vector<int32_t>& prompt : in.prompts) {
    documents.push_back(loss_document({prompt, prompt, false, false, ""}));
  }
  std::vector<double> out;
  const auto all_scores = score_documents(*runner, documents).take();
  for (const auto& scores : all_scores) {
    for (const TokenScore& score : scores) out.push_back(score.log_prob);
  }
  return out;
}

SessionOptions gap_session(const Options& options, const GapInputs& in, Numerics numerics) {
  SessionOptions session = session_options(options, in.lora, in.model.config);
  GraphOptions& graphs = session.graphs;
  // What the engine computes in, unless asked otherwise; its weights are rounded to it.
  if (!session.activation_dtype) session.activation_dtype = DType::kBF16;
  graphs.layer.activation_dtype = *session.activation_dtype;
  if (!options.given("weight-dtype")) graphs.layer.weight_dtype = *session.activation_dtype;
  graphs.layer.numerics = numerics;
  graphs.train = false;
  graphs.eval = true;
  size_t longest = 2;
  for (const std::vector<int32_t>& prompt : in.prompts) longest = std::max(longest, prompt.size());
  graphs.layer.seq_len = static_cast<int64_t>(longest);
  graphs.loss_rows = loss_rows_option(options, {&graphs.layer.seq_len, 1}, graphs.layer.seq_len);
  return session;
}

Json statistics_json(Numerics numerics, const GapStatistics& s) {
  return {{"numerics", std::string(numerics_name(numerics))},
          {"tokens", s.tokens},
          {"mean", s.mean_abs},
          {"rms", s.rms},
          {"p99", s.p99_abs},
          {"max", s.max_abs},
          {"bias", s.bias},
          {"kl", s.kl}};
}

void print_table(const Json& report) {
  std::cout << "log-probability gap to " << report["engine"].get<std::string>() << " over "
            << report["tokens"] << " tokens, nats (" << report["backend"].get<std::string>() << ", "
            << report["dtype"].get<std::string>() << ")\n";
  std::cout << std::left << std::setw(10) << "numerics" << std::right;
  constexpr const char* kColumns[] = {"mean", "rms", "p99", "max", "bias", "kl"};
  for (const char* name : kColumns) std::cout << std::setw(12) << name;
  std::cout << "\n" << std::scientific << std::setprecision(2);
  for (const Json& row : report["policies"]) {
    std::cout << std::left << std::setw(10) << row["numerics"].get<std::string>() << std::right;
    for (const char* name : kColumns) std::cout << std::setw(12) << row[name].get<double>();
    std::cout << "\n";
  }
  std::cout << "best: --numerics " << report["best"].get<std::string>() << "\n";
}

}  // namespace

int check_serve_gap(const Options& options) {
  const bool quiet = options.flag("quiet") || options.flag("json");
  if (quiet) set_log_level(LogLevel::kWarn);
  const GapInputs in = read_inputs(options);
  const ServedLogProbs served = ask_engine(options, in);
  const std::vector<double> serving = flat(served.log_probs);
  Json report = {{"engine", served.engine}, {"tokens", serving.size()}};
  double best = INFINITY;
  for (const Numerics numerics : kAllNumerics) {
    SessionOptions session = gap_session(options, in, numerics);
    resolve_placement(in.model.config, session, *in.model.weights);
    const GapStatistics s = gap_statistics(training_log_probs(session, in, quiet), serving);
    report["backend"] = session.backend;
    report["dtype"] = std::string(dtype_name(session.graphs.layer.activation_dtype));
    report["policies"].push_back(statistics_json(numerics, s));
    if (!std::isfinite(s.rms)) {
      fail_input("--numerics " + std::string(numerics_name(numerics)),
                 "a log-probability is not finite on " + session.backend);
    }
    if (s.rms < best) {
      best = s.rms;
      report["best"] = std::string(numerics_name(numerics));
    }
  }
  if (options.flag("json")) {
    std::cout << report.dump(2) << "\n";
  } else {
    print_table(report);
  }
  return 0;
}

}  // namespace npu
