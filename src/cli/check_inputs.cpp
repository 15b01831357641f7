// Inputs of check and diagnose, from files or drawn from a seed.
#include "cli/check_inputs.h"

#include <algorithm>

#include "base/random.h"
#include "io/safetensors.h"
#include "train/lora_state.h"

namespace npu {
namespace {

// int64 [B,S] → int32, range-checked.
std::vector<int32_t> token_tensor(const SafetensorsFile& file, const std::string& where,
                                  const char* name, int64_t low, int64_t high, Shape& shape) {
  if (!file.has(name)) {
    fail_input(where, std::string("tensor ") + name + " is missing", "",
               "--batch takes input_ids and labels, int64 [B,S]");
  }
  const Tensor tensor = file.get(name);
  if (tensor.dtype() != DType::kI64 || tensor.shape().size() != 2 || tensor.size() == 0) {
    fail_input(where + ":" + name, "must be int64 [B,S]",
               std::string(dtype_name(tensor.dtype())) + shape_text(tensor.shape()));
  }
  shape = tensor.shape();
  std::vector<int32_t> values;
  for (const int64_t value : tensor.values<int64_t>()) {
    if ((value < low || value >= high) && value != kNoLoss) {
      fail_input(where + ":" + name, "token ids must be in [0, " + std::to_string(high) + ")",
                 std::to_string(value));
    }
    values.push_back(static_cast<int32_t>(value));
  }
  return values;
}

Batch read_batch(const std::string& path, const ModelConfig& config) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  Shape shape, label_shape;
  Batch batch;
  batch.input_ids = token_tensor(file, path, "input_ids", 0, config.vocab_size, shape);
  batch.labels = token_tensor(file, path, "labels", 0, config.vocab_size, label_shape);
  if (shape != label_shape) {
    fail_input(path, "input_ids and labels must have one shape",
               shape_text(shape) + " and " + shape_text(label_shape));
  }
  for (const int32_t id : batch.input_ids) {
    if (id < 0)
      fail_input(path + ":input_ids", "token ids must not be negative", std::to_string(id));
  }
  batch.batch = shape[0];
  batch.seq_len = shape[1];
  return batch;
}

Batch random_batch(const ModelConfig& config, int64_t sequences, int64_t seq_len, uint64_t seed) {
  const RandomStream random(seed, "check batch");
  Batch batch;
  batch.batch = sequences;
  batch.seq_len = seq_len;
  for (int64_t i = 0; i < batch.rows(); ++i) {
    batch.input_ids.push_back(static_cast<int32_t>(random.bits(static_cast<uint64_t>(i)) %
                                                   static_cast<uint64_t>(config.vocab_size)));
  }
  batch.labels = batch.input_ids;
  return batch;
}

// Every sequence is one document from its first token to its last.
void fill_positions(Batch& batch) {
  for (int64_t b = 0; b < batch.batch; ++b) {
    for (int64_t s = 0; s < batch.seq_len; ++s) {
      batch.segments.push_back(0);
      batch.positions.push_back(static_cast<int32_t>(s));
    }
  }
  batch.num_documents = batch.batch;
}

}  // namespace

CheckInputs read_check_inputs(const Options& options, int64_t batch) {
  CheckInputs in;
  const bool random = options.has("random-weights");
  HfModel model = open_model(options, !random);
  in.config = model.config;
  if (const int64_t layers = options.integer("layers"); layers > 0) {
    in.config.num_hidden_layers = std::min(layers, in.config.num_hidden_layers);
  }
  in.weights =
      random ? random_weights(in.config, static_cast<uint64_t>(options.integer("random-weights")))
             : std::move(model.weights);
  in.lora = lora_options(options);
  std::optional<Adapter> adapter;
  if (options.has("adapter")) {
    adapter = read_peft_adapter(options.text("adapter"), model.config);
    in.lora = adapter->lora;
    refuse_other_lora(options, "--adapter", in.lora);
  }
  const int64_t seeds = options.integer("seeds", 1, 1000);
  if (seeds > 1 && adapter && options.has("batch-file")) {
    fail(ErrorKind::kUsage, "--seeds", "has nothing to vary", std::to_string(seeds),
         "leave out --adapter or --batch-file");
  }
  for (int64_t i = 0; i < seeds; ++i) {
    CheckCase c;
    c.seed = static_cast<uint64_t>(options.integer("seed") + i);
    c.parameters = adapter ? lora_from_tensors(in.config, in.lora, adapter->tensors)
                           : init_lora(in.config, in.lora, c.seed, kCheckBStd);
    c.batch = options.has("batch-file")
                  ? read_batch(options.text("batch-file"), in.config)
                  : random_batch(in.config, batch, options.integer("seq-len", 2), c.seed);
    fill_positions(c.batch);
    in.cases.push_back(std::move(c));
  }
  return in;
}

SessionOptions check_session(const Options& options, const CheckInputs& in) {
  SessionOptions session = session_options(options, in.lora, in.config);
  const auto backend = make_backend(session.backend).take();
  session.activation_dtype = session.activation_dtype.value_or(backend->traits().compute_dtype);
  const Batch& batch = in.cases.front().batch;
  session.graphs.layer.activation_dtype = *session.activation_dtype;
  session.graphs.layer.batch = batch.batch;
  session.graphs.layer.seq_len = batch.seq_len;
  const auto count = static_cast<int64_t>(loss_rows(batch).size());
  session.graphs.loss_rows = loss_rows_option(options, {&count, 1}, batch.rows());
  resolve_memory(options, in.config, session);
  return session;
}

SessionOptions fp32_session(const SessionOptions& session, const ModelConfig& config) {
  SessionOptions fp32 = whole_on(session, "cpu");
  fp32.activation_dtype = DType::kF32;
  fp32.graphs.layer.numerics = Numerics::kFp32;
  fp32.graphs.layer.weight_dtype = config.storage_dtype;
  return fp32;
}

DType device_precision(const SessionOptions& session) {
  return make_backend(session.backend).take()->traits().precision;
}

std::vector<RunResult> run_cases(ModelRunner& runner, const CheckInputs& in) {
  std::vector<RunResult> results;
  for (const CheckCase& c : in.cases) {
    std::vector<Parameter> parameters;
    for (const Parameter& p : c.parameters) {
      parameters.push_back(make_parameter(p.name, p.value.clone()));
    }
    results.push_back(run_once(runner, std::move(parameters), c.batch));
  }
  return results;
}

std::vector<RunResult> run_session(const SessionOptions& session, const CheckInputs& in,
                                   bool quiet) {
  return run_cases(*start_runner(in.config, session, *in.weights, quiet), in);
}

}  // namespace npu
