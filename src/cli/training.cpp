// From options to data, adapter and sizes of a training run.
#include "cli/training.h"

#include <algorithm>

#include "cli/commands.h"

namespace npu {
namespace {

// Wrapping cuts the running stream itself, so rows may have any length.
constexpr int64_t kUncut = int64_t{1} << 40;

Packing packing_option(const Options& options) {
  const std::string mode = options.choice("packing", {"best-fit", "wrap", "none"});
  return mode == "best-fit" ? Packing::kBestFit : mode == "wrap" ? Packing::kWrap : Packing::kNone;
}

}  // namespace

StartAdapter start_adapter(const Options& options, const ModelConfig& config) {
  StartAdapter start{lora_options(options), std::nullopt};
  if (!options.has("init-adapter")) return start;
  start.read = read_peft_adapter(options.text("init-adapter"), config);
  start.lora = start.read->lora;
  refuse_other_lora(options, "--init-adapter", start.lora);
  return start;
}

TrainingData load_training_data(const Options& options, const HfModel& model) {
  const Tokenizer tokenizer = Tokenizer::from_files(model.tokenizer);
  DatasetOptions d = dataset_options(options, model.config);
  const auto load = [&](const char* name) {
    const std::vector<std::string> files = options.list(name);
    Dataset data = load_dataset({files.begin(), files.end()}, tokenizer, model.tokenizer, d);
    report_dataset(data, name);
    return data;
  };
  if (options.list("data").empty()) options.text("data");  // reports that it is required
  TrainingData data;
  // Held-out rows are scored whole or cut, whatever the packing.
  if (!options.list("eval-data").empty()) data.held_out = load("eval-data");
  if (packing_option(options) == Packing::kWrap) d.max_length = kUncut;
  data.train = load("data");
  return data;
}

BatcherOptions batcher_options(const Options& options, const HfModel& model) {
  BatcherOptions b;
  b.set_seq_lens(seq_lengths(options));
  b.batch = options.integer("batch", 1, 4096);
  b.packing = packing_option(options);
  b.seed = static_cast<uint64_t>(options.integer("seed"));
  b.pad_id = std::max(0, model.tokenizer.eos_token_id);
  return b;
}

SessionOptions training_session(const Options& options, const LoraSpec& lora,
                                const ModelConfig& config, const Batcher* batcher, bool eval) {
  SessionOptions session = session_options(options, lora, config);
  LayerOptions& layer = session.graphs.layer;
  layer.batch = options.integer("batch", 1, 4096);
  session.graphs.eval = eval;
  std::vector<Batcher::Bucket> buckets;
  if (batcher != nullptr) buckets = batcher->buckets();
  for (const int64_t seq_len : seq_lengths(options)) {
    const int64_t rows = layer.batch * seq_len;
    std::vector<int64_t> own, any;
    for (const Batcher::Bucket& bucket : buckets) {
      if (bucket.seq_len == seq_len) own = bucket.loss_rows;
      any.insert(any.end(), bucket.loss_rows.begin(), bucket.loss_rows.end());
    }
    if (own.empty()) own = any;  // a length that the first epoch does not use
    if (own.empty()) own = {rows};
    session.graphs.shorter.push_back({seq_len, loss_rows_option(options, own, rows)});
  }
  session.graphs.loss_rows = session.graphs.shorter.back().loss_rows;
  session.graphs.shorter.pop_back();
  resolve_memory(options, config, session);
  return session;
}

}  // namespace npu
