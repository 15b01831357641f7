// npu-lora check: loss and every LoRA gradient of a backend against the CPU, and both against f32.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/random.h"
#include "cli/commands.h"
#include "io/safetensors.h"
#include "train/check.h"
#include "train/lora_state.h"

namespace npu {
namespace {

constexpr double kCheckBStd = 0.01;  // B = 0 would hide the gradient of A

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

Batch random_batch(const ModelConfig& config, int64_t seq_len, uint64_t seed) {
  const RandomStream random(seed, "check batch");
  Batch batch;
  batch.batch = 1;
  batch.seq_len = seq_len;
  for (int64_t i = 0; i < seq_len; ++i) {
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

struct CheckInputs {
  ModelConfig config;
  std::unique_ptr<WeightStore> weights;
  LoraSpec lora;
  std::vector<Parameter> parameters;
  Batch batch;
};

CheckInputs read_inputs(const Options& options) {
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
  const uint64_t seed = static_cast<uint64_t>(options.integer("seed"));
  in.lora = lora_options(options);
  if (options.has("adapter")) {
    const Adapter adapter = read_peft_adapter(options.text("adapter"), model.config);
    in.lora = adapter.lora;
    refuse_other_lora(options, "--adapter", in.lora);
    in.parameters = lora_from_tensors(in.config, in.lora, adapter.tensors);
  } else {
    in.parameters = init_lora(in.config, in.lora, seed, kCheckBStd);
  }
  in.batch = options.has("batch-file")
                 ? read_batch(options.text("batch-file"), in.config)
                 : random_batch(in.config, options.integer("seq-len", 2), seed);
  fill_positions(in.batch);
  return in;
}

RunResult run_on(const Options& options, const CheckInputs& in, const std::string& backend,
                 bool fp32) {
  SessionOptions session = session_options(options, in.lora, in.config);
  session.backend = backend;
  if (backend != options.text("backend")) {
    session.host_groups.emplace();  // the reference runs whole, wherever the device's parts go
    session.max_contractions = 0;
  }
  if (fp32) session.graphs.layer.numerics = Numerics::kFp32;
  session.graphs.layer.batch = in.batch.batch;
  session.graphs.layer.seq_len = in.batch.seq_len;
  const int64_t rows = in.batch.rows(), asked = options.integer("loss-rows");
  session.graphs.loss_rows =
      asked > 0 ? std::min(asked, rows)
                : loss_row_bucket(static_cast<int64_t>(loss_rows(in.batch).size()), rows);
  resolve_recompute(options, in.config, session);
  auto runner = start_runner(in.config, session, *in.weights, options.flag("quiet"));
  std::vector<Parameter> parameters;
  for (const Parameter& p : in.parameters) {
    parameters.push_back(make_parameter(p.name, p.value.clone()));
  }
  return run_once(*runner, std::move(parameters), in.batch);
}

void dump(const std::string& path, const RunResult& run) {
  std::map<std::string, Tensor> tensors;
  tensors["loss"] = Tensor::scalar_f32(static_cast<float>(run.loss));
  for (const Parameter& p : run.parameters) tensors[peft_name(p.name)] = p.grad;
  write_safetensors(path, tensors);
}

Json comparison_json(const Comparison& c) {
  Json out = {{"loss", c.loss},
              {"reference_loss", c.reference_loss},
              {"loss_rel", c.loss_rel},
              {"worst_grad_rel", c.worst_grad_rel},
              {"min_cosine", c.min_cosine},
              {"grads", Json::array()}};
  for (const GradientError& g : c.grads) {
    out["grads"].push_back({{"name", g.name}, {"rel", g.rel}, {"cosine", g.cosine}});
  }
  return out;
}

void print_comparison(const std::string& title, const Comparison& c) {
  std::cout << title << "\n  loss " << std::setprecision(7) << c.loss << ", reference "
            << c.reference_loss << ", relative difference " << std::setprecision(3) << c.loss_rel
            << "\n  worst gradients (of " << c.grads.size() << "):\n";
  for (size_t i = 0; i < std::min<size_t>(5, c.grads.size()); ++i) {
    std::cout << "    " << std::left << std::setw(52) << c.grads[i].name << std::right << " rel "
              << std::scientific << std::setprecision(2) << c.grads[i].rel << std::defaultfloat
              << "  cosine " << std::setprecision(8) << c.grads[i].cosine << "\n";
  }
}

}  // namespace

int cmd_check(const Options& options) {
  if (options.has("serve-gap")) return check_serve_gap(options);
  if (options.flag("quiet") || options.flag("json")) set_log_level(LogLevel::kWarn);
  const CheckInputs in = read_inputs(options);
  const std::string backend = options.text("backend");
  const RunResult run = run_on(options, in, backend, false);
  if (options.has("dump")) dump(options.text("dump"), run);

  const auto chosen = make_backend(backend).take();
  const std::string name = chosen->traits().name;
  std::string reference = name == "cpu" ? "cpu:reference" : "cpu";
  if (options.has("reference")) reference = options.text("reference");
  if (reference == "none") {
    std::cout << (options.flag("json") ? Json{{"loss", run.loss}}.dump()
                                       : "loss " + std::to_string(run.loss))
              << "\n";
    return 0;
  }
  const RunResult cpu = run_on(options, in, reference, false);
  const Comparison versus_cpu = compare_runs(run, cpu);
  // In f32 the reference already is the f32 run.
  const SessionOptions session = session_options(options, in.lora, in.config);
  const bool rounds =
      session.graphs.layer.numerics == Numerics::kHf &&
      session.activation_dtype.value_or(chosen->traits().compute_dtype) != DType::kF32;
  const RunResult fp32 = rounds ? run_on(options, in, "cpu", true) : cpu;
  const Comparison versus_fp32 = compare_runs(run, fp32);
  const bool pass = versus_cpu.pass(CheckLimits{});

  if (options.flag("json")) {
    Json out = {{"pass", pass}, {"backend", name}, {"reference", reference}};
    out.update(comparison_json(versus_cpu));
    out["fp32"] = comparison_json(versus_fp32);
    if (rounds) out["reference_fp32"] = comparison_json(compare_runs(cpu, fp32));
    std::cout << out.dump(2) << "\n";
  } else {
    print_comparison(name + " against " + reference, versus_cpu);
    print_comparison(name + " against f32", versus_fp32);
    if (rounds) print_comparison(reference + " against f32", compare_runs(cpu, fp32));
    std::cout << (pass ? "pass" : "FAIL: loss must be within 1 % and each gradient within 5 %")
              << "\n";
  }
  return pass ? 0 : static_cast<int>(ErrorKind::kCheckFailed);
}

}  // namespace npu
