// A model on a device: one micro-batch forward and backward, or forward and scored.
#include "train/runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/clock.h"
#include "train/batch_inputs.h"
#include "train/device_model.h"
#include "train/head.h"
#include "train/lora_state.h"

namespace npu {
namespace {

void add_into(Tensor& sum_f32, const Tensor& term) {
  const auto to = sum_f32.mutable_values<float>();
  const Tensor from = term.dtype() == DType::kF32 ? term : term.to(DType::kF32);
  const auto values = from.values<float>();
  for (size_t i = 0; i < to.size(); ++i) to[i] += values[i];
}

// Micro-batches of one sequence length.
struct LengthRun {
  Workspace& buffers;
  HeadJoin join;       // of the device's sums: the gradient
  HeadJoin loss_join;  // of its logits, summed here, with head_logits: the loss
  LengthRun(Workspace& w, const ModelConfig& config, bool train)
      : buffers(w),
        join(w.bucket.loss_rows, config.hidden_size, train),
        loss_join(w.bucket.loss_rows, config.hidden_size, /*gradient=*/false) {}
};

}  // namespace

struct ModelRunner::State {
  ModelConfig config;
  ModelGraphs graphs;
  std::unique_ptr<Runtime> runtime;
  ThreadPool pool;
  DeviceModel model;
  std::vector<LengthRun> lengths;  // of model.workspaces
  RopeRows rope;
  // Whose cos, sin and mask the device holds.
  struct Layout {
    int64_t seq_len = 0;
    std::vector<int32_t> positions, segments;
  } layout;
  Phases phases;

  State(const ModelConfig& c, ModelGraphs g, std::unique_ptr<Runtime> r, const WeightStore& w,
        bool adopt, int threads)
      : config(c),
        graphs(std::move(g)),
        runtime(std::move(r)),
        pool(threads),
        model(config, graphs, runtime->device(), w, adopt, pool),
        rope(config, graphs.longest().seq_len, graphs.options.layer.compute_dtype()) {
    for (Workspace& buffers : model.workspaces) {
      lengths.emplace_back(buffers, config, graphs.options.train);
    }
  }

  Device& device() { return runtime->device(); }
  int64_t num_layers() const { return config.num_hidden_layers; }

  bool head_logits() const { return graphs.options.layer.head_logits; }
  double log_prob(const LengthRun& run, size_t row) const {
    return (head_logits() ? run.loss_join : run.join).log_prob(static_cast<int64_t>(row));
  }

  LengthRun& length_of(const Batch& batch);
  // The device's inputs of a micro-batch, and how it runs.
  LengthRun& load_batch(const Batch& batch);
  std::optional<Error> forward(LengthRun& run, bool train);
  // final_norm and the head's chunks for up to R targets.
  std::optional<Error> run_head(LengthRun& run, std::span<const RowTarget> targets, bool train,
                                std::vector<int32_t>* argmax);
  // One chunk, added to the joins. Its maxima [R,1].
  Result<Tensor> run_chunk(LengthRun& run, size_t chunk, bool train);
  // The loss of R targets, and d_h for them.
  LossSum head_gradient(LengthRun& run, std::span<const RowTarget> targets, double w);
  // All loss rows: the loss, and the gradient of the last layer's output in layer_gradient(L-1).
  Result<LossSum> loss_and_gradient(LengthRun& run, std::span<const RowTarget> targets, double w);
  std::optional<Error> backward(LengthRun& run, std::span<Parameter> parameters);
};

LengthRun& ModelRunner::State::length_of(const Batch& batch) {
  const auto found = std::find_if(lengths.begin(), lengths.end(), [&](const LengthRun& run) {
    return run.buffers.bucket.seq_len == batch.seq_len;
  });
  NPU_CHECK(batch.batch == graphs.options.layer.batch && found != lengths.end(),
            "batch of another shape than the graphs'");
  return *found;
}

LengthRun& ModelRunner::State::load_batch(const Batch& batch) {
  const Stopwatch watch(phases.input_seconds);
  LengthRun& run = length_of(batch);
  Workspace& buffers = run.buffers;
  const DType compute = graphs.options.layer.compute_dtype();
  fill_tensor(device(), buffers.layer_input(0),
              [&](Tensor& x) { embedding_rows(model.embedding_VH, batch, compute, x); });
  // Full sequences of one document follow each other where rows are cut, not packed.
  if (batch.seq_len == layout.seq_len && batch.positions == layout.positions &&
      batch.segments == layout.segments) {
    return run;
  }
  fill_tensor(device(), buffers.cos, [&](Tensor& cos) { rope.fill_cos(batch, cos); });
  fill_tensor(device(), buffers.sin, [&](Tensor& sin) { rope.fill_sin(batch, sin); });
  fill_tensor(device(), buffers.mask, [&](Tensor& mask) { attention_mask(batch, mask); });
  layout = {batch.seq_len, batch.positions, batch.segments};
  return run;
}

std::optional<Error> ModelRunner::State::forward(LengthRun& run, bool train) {
  const bool saves = train || graphs.shares_layers();
  const std::string graph = run.buffers.bucket.name(saves ? kLayerForward : kLayerEval);
  for (const Workspace::LayerCall& call : run.buffers.layers) {
    if (auto error = runtime->run(graph, saves ? call.forward : call.eval)) return error;
  }
  return std::nullopt;
}

Result<Tensor> ModelRunner::State::run_chunk(LengthRun& run, size_t chunk, bool train) {
  Workspace& buffers = run.buffers;
  Runtime::Bindings bindings = {{"h", buffers.h.buffer.get()},
                                {"head.weight", model.head_chunks[chunk].buffer.get()},
                                {"target", buffers.targets.buffer.get()},
                                {"column", model.columns(chunk)},
                                {"max", buffers.max.buffer.get()},
                                {"sum", buffers.sum.buffer.get()},
                                {"target_logit", buffers.target_logit.buffer.get()}};
  if (head_logits()) bindings["logits"] = buffers.logits[chunk].buffer.get();
  if (train) {
    bindings["u"] = buffers.u.buffer.get();
  } else {
    bindings["argmax"] = buffers.argmax.buffer.get();
  }
  const std::string graph = graphs.head_graph(train ? kCeGrad : kCeStats, chunk);
  if (auto error = runtime->run(buffers.bucket.name(graph), bindings)) return *error;
  const Stopwatch watch(phases.head_seconds);
  const Tensor max = read_tensor(device(), buffers.max);
  Tensor u = train ? read_tensor(device(), buffers.u) : Tensor();
  if (train && u.dtype() != DType::kF32) u = u.to(DType::kF32);
  run.join.add(max, read_tensor(device(), buffers.sum), read_tensor(device(), buffers.target_logit),
               train ? &u : nullptr);
  if (head_logits()) {
    run.loss_join.add(read_tensor(device(), buffers.logits[chunk]),
                      read_tensor(device(), buffers.targets).to(DType::kI32));
  }
  return max;
}

std::optional<Error> ModelRunner::State::run_head(LengthRun& run,
                                                  std::span<const RowTarget> targets, bool train,
                                                  std::vector<int32_t>* argmax) {
  Workspace& buffers = run.buffers;
  fill_tensor(device(), buffers.rows, [&](Tensor& rows) { loss_row_input(targets, rows); });
  auto error = runtime->run(buffers.bucket.name(kFinalNorm),
                            {{"x", buffers.layer_input(num_layers()).buffer.get()},
                             {"rows", buffers.rows.buffer.get()},
                             {"norm.weight", model.norm_weight.buffer.get()},
                             {"h", buffers.h.buffer.get()}});
  if (error) return error;
  run.join.reset();
  run.loss_join.reset();
  int64_t first_column = 0;
  std::vector<float> best(targets.size(), -std::numeric_limits<float>::infinity());
  for (size_t chunk = 0; chunk < graphs.chunks.size(); ++chunk) {
    fill_tensor(device(), buffers.targets, [&](Tensor& relative) {
      for (int64_t i = 0; i < relative.size(); ++i) {
        const auto row = static_cast<size_t>(i);
        const int64_t column = row < targets.size() ? targets[row].target - first_column : -1;
        set_element(relative, i, static_cast<double>(column));
      }
    });
    const Result<Tensor> max = run_chunk(run, chunk, train);
    if (!max) return max.error();
    if (argmax != nullptr) {
      const auto max_R = max.value().values<float>();
      const Tensor columns = read_tensor(device(), buffers.argmax);
      for (size_t i = 0; i < targets.size(); ++i) {
        if (max_R[i] <= best[i]) continue;
        best[i] = max_R[i];
        (*argmax)[i] =
            static_cast<int32_t>(first_column) + static_cast<int32_t>(columns.values<float>()[i]);
      }
    }
    first_column += graphs.chunks[chunk];
  }
  return std::nullopt;
}

LossSum ModelRunner::State::head_gradient(LengthRun& run, std::span<const RowTarget> targets,
                                          double w) {
  const Stopwatch watch(phases.head_seconds);
  LossSum loss;
  Tensor d_h(DType::kF32, run.buffers.d_h.type.shape);
  const auto d_h_values = d_h.mutable_values<float>();
  const size_t hidden = static_cast<size_t>(config.hidden_size);
  for (size_t i = 0; i < targets.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i);
    loss.nats -= log_prob(run, i);
    ++loss.tokens;
    const Tensor weight =
        model.head_VH.rows(targets[i].target, targets[i].target + 1).to(DType::kF32);
    run.join.gradient(row, w, weight.values<float>(), d_h_values.subspan(i * hidden, hidden));
  }
  upload_tensor(device(), run.buffers.d_h, d_h);
  return loss;
}

Result<LossSum> ModelRunner::State::loss_and_gradient(LengthRun& run,
                                                      std::span<const RowTarget> targets,
                                                      double w) {
  Workspace& buffers = run.buffers;
  LossSum loss;
  const size_t block = static_cast<size_t>(buffers.bucket.loss_rows);
  DeviceTensor& d_y = buffers.layer_gradient(num_layers() - 1);
  const bool one_block = targets.size() <= block;
  Tensor total = one_block ? Tensor() : Tensor(DType::kF32, d_y.type.shape);
  for (size_t begin = 0; begin < targets.size() || begin == 0; begin += block) {
    const auto part = targets.subspan(begin, std::min(block, targets.size() - begin));
    if (auto error = run_head(run, part, true, nullptr)) return *error;
    const LossSum sum = head_gradient(run, part, w);
    loss.nats += sum.nats;
    loss.tokens += sum.tokens;
    DeviceTensor& d_x = one_block ? d_y : buffers.d_x_head;
    auto error = runtime->run(buffers.bucket.name(kFinalNormBackward),
                              {{"x", buffers.layer_input(num_layers()).buffer.get()},
                               {"rows", buffers.rows.buffer.get()},
                               {"norm.weight", model.norm_weight.buffer.get()},
                               {"d_h", buffers.d_h.buffer.get()},
                               {"d_x", d_x.buffer.get()}});
    if (error) return *error;
    if (!one_block) add_into(total, read_tensor(device(), d_x));
  }
  if (!one_block) upload_tensor(device(), d_y, total);
  return loss;
}

std::optional<Error> ModelRunner::State::backward(LengthRun& run, std::span<Parameter> parameters) {
  const std::vector<std::string> inputs = trained_inputs(graphs.options.layer.lora);
  const BucketGraphs& bucket = run.buffers.bucket;
  for (int64_t layer = num_layers() - 1; layer >= 0; --layer) {
    const Workspace::LayerCall& call = run.buffers.layers[static_cast<size_t>(layer)];
    const bool ends = layer == 0 && !graphs.shares_layers();
    auto error =
        runtime->run(bucket.name(ends ? kFirstLayerBackward : kLayerBackward), call.backward);
    if (error) return error;
    const Stopwatch watch(phases.grad_seconds);
    for (size_t i = 0; i < inputs.size(); ++i) {
      Parameter& parameter = parameters[static_cast<size_t>(layer) * inputs.size() + i];
      add_into(parameter.grad, read_tensor(device(), model.adapter_gradients.at("d_" + inputs[i])));
    }
  }
  return std::nullopt;
}

ModelRunner::ModelRunner(const ModelConfig& config, ModelGraphs graphs,
                         std::unique_ptr<Runtime> runtime, const WeightStore& weights,
                         bool adopt_weights, int threads)
    : state_(std::make_unique<State>(config, std::move(graphs), std::move(runtime), weights,
                                     adopt_weights, threads)) {}
ModelRunner::~ModelRunner() = default;

const ModelConfig& ModelRunner::config() const { return state_->config; }
const ModelGraphs& ModelRunner::graphs() const { return state_->graphs; }
Runtime& ModelRunner::runtime() { return *state_->runtime; }
ThreadPool& ModelRunner::host_threads() { return state_->pool; }
int64_t ModelRunner::batch_size() const { return state_->graphs.options.layer.batch; }
int64_t ModelRunner::seq_len() const { return state_->graphs.options.layer.seq_len; }
std::vector<int64_t> ModelRunner::seq_lens() const {
  std::vector<int64_t> lengths;
  for (const BucketGraphs& b : state_->graphs.buckets) lengths.insert(lengths.begin(), b.seq_len);
  return lengths;
}
const ModelRunner::Phases& ModelRunner::phases() const { return state_->phases; }
int64_t ModelRunner::device_bytes() const { return state_->model.bytes; }
std::vector<std::pair<std::string, DeviceTensor>> ModelRunner::frozen_weights() const {
  return state_->model.frozen_weights(state_->config);
}

void ModelRunner::set_adapter(std::span<const Parameter> parameters) {
  const std::vector<std::string> inputs = trained_inputs(state_->graphs.options.layer.lora);
  NPU_CHECK(parameters.size() == inputs.size() * state_->model.layers.size(),
            "adapter of another shape than the graphs'");
  size_t next = 0;
  for (auto& weights : state_->model.layers) {
    for (const std::string& input : inputs) {
      upload_tensor(state_->device(), weights.at(input), parameters[next++].value);
    }
  }
}

Result<LossSum> ModelRunner::forward_backward(const Batch& batch, double w,
                                              std::span<Parameter> parameters) {
  NPU_CHECK(state_->graphs.options.train, "graphs were built for evaluation only");
  state_->phases = {};
  const std::vector<RowTarget> targets = loss_rows(batch);
  if (targets.empty()) return LossSum{};  // nothing to learn from: no device time spent
  LengthRun& run = state_->load_batch(batch);
  if (auto error = state_->forward(run, true)) return *error;
  Result<LossSum> loss = state_->loss_and_gradient(run, targets, w);
  if (!loss.ok()) return loss;
  if (auto error = state_->backward(run, parameters)) return *error;
  return loss;
}

Result<std::vector<TokenScore>> ModelRunner::score(const Batch& batch,
                                                   std::span<const RowTarget> targets) {
  NPU_CHECK(state_->graphs.options.eval, "graphs were built for training only");
  state_->phases = {};
  LengthRun& run = state_->load_batch(batch);
  if (auto error = state_->forward(run, false)) return *error;
  std::vector<TokenScore> scores;
  const size_t block = static_cast<size_t>(run.buffers.bucket.loss_rows);
  for (size_t begin = 0; begin < targets.size(); begin += block) {
    const auto part = targets.subspan(begin, std::min(block, targets.size() - begin));
    std::vector<int32_t> argmax(part.size());
    if (auto error = state_->run_head(run, part, false, &argmax)) return *error;
    for (size_t i = 0; i < part.size(); ++i) {
      scores.push_back({static_cast<float>(state_->log_prob(run, i)), argmax[i]});
    }
  }
  return scores;
}

}  // namespace npu
