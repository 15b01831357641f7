// From a model and options to a runner that is ready.
#include "train/session.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include "base/log.h"
#include "base/text.h"
#include "compile/cut_search.h"
#include "ops/ops.h"
#include "train/device_buffers.h"

namespace npu {

namespace {

// Whatever the text of a part may depend on, under the names of options and of config.json.
PartOrigin origin_of(const ModelConfig& config, const SessionOptions& options) {
  const GraphOptions& graphs = options.graphs;
  const LayerOptions& layer = graphs.layer;
  std::vector<std::string_view> targets;
  for (const Linear& linear : linears()) {
    if (layer.lora.has(linear.name)) targets.push_back(linear.letter);
  }
  std::vector<std::string> seq_lens;
  for (const LengthBucket& bucket : graphs.shorter) {
    seq_lens.push_back(std::to_string(bucket.seq_len));
  }
  seq_lens.push_back(std::to_string(layer.seq_len));
  PartOrigin origin = {
      {"seq-len", joined(seq_lens, ",")},
      {"batch", std::to_string(layer.batch)},
      {"rank", targets.empty() ? "none" : std::to_string(layer.lora.rank)},
      {"targets", names_or_none(targets)},
      {"numerics", std::string(numerics_name(layer.numerics))},
      {"dtype", std::string(dtype_name(layer.activation_dtype))},
      {"weight-dtype", std::string(dtype_name(layer.weight_dtype))},
      {"recompute", graphs.recompute == Recompute::kNone ? "none" : "layer"},
      {"loss-rows", loss_rows_text(graphs)},
      {"vocab-chunk", std::to_string(graphs.vocab_chunk)},
      {"max-mm", std::to_string(options.plan.limits.contractions)},
      {"disable-pass", names_or_none(options.plan.passes.disabled)},
  };
  const std::pair<const char*, int64_t> geometry[] = {
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_attention_heads", config.num_attention_heads},
      {"num_key_value_heads", config.num_key_value_heads},
      {"head_dim", config.head_dim},
      {"vocab_size", config.vocab_size},
      {"attention_bias", config.attention_bias},
      {"mlp_bias", config.mlp_bias}};
  for (const auto& [name, size] : geometry) origin.emplace_back(name, std::to_string(size));
  char eps[32];
  std::snprintf(eps, sizeof eps, "%g", config.rms_norm_eps);
  origin.emplace_back("rms_norm_eps", eps);
  return origin;
}

// Where compiling is dear and the compiler forecasts what parts cost, that decides where to cut,
// unless the number of contractions of a part is given. `options` must outlive the plan's making.
void choose_cuts(SessionOptions& options, Backend& backend) {
  options.plan.choose_cut = nullptr;
  if (options.max_contractions || !backend.traits().dear_compiles) return;
  const std::optional<CostRates> rates = backend.cost_rates(options.plan.compile);
  if (!rates) return;
  const CutBounds bounds{options.plan.limits,
                         options.part_seconds.value_or(rates->compile_seconds_of_a_part)};
  options.plan.choose_cut = [&backend, bounds, compile = options.plan.compile,
                             settings = options.compile](const Graph& graph) {
    return search_cut(graph, backend, compile, settings, bounds);
  };
}

}  // namespace

VendorOptions vendor_options(const Traits& traits,
                             const std::map<std::string, std::string, std::less<>>& given) {
  VendorOptions options;
  for (const auto& [name, otherwise] : traits.options) {
    const auto found = given.find(name);
    const std::string& value = found == given.end() ? otherwise : found->second;
    if (!value.empty()) options.emplace_back(name, value);
  }
  return options;
}

std::string loss_rows_text(const GraphOptions& graphs) {
  std::vector<std::string> rows;
  for (const LengthBucket& bucket : graphs.shorter)
    rows.push_back(std::to_string(bucket.loss_rows));
  rows.push_back(std::to_string(graphs.loss_rows));
  return joined(rows, ",");
}

std::string reference_backend(std::string_view backend) {
  return backend == "cpu" ? "cpu:reference" : "cpu";
}

SessionOptions whole_on(const SessionOptions& session, const std::string& backend) {
  SessionOptions whole = session;
  whole.backend = backend;
  whole.code_of.clear();
  whole.host_groups.emplace();
  whole.max_contractions = 0;
  whole.prepack = false;  // it runs a few times at most
  return whole;
}

std::unique_ptr<Backend> open_backend(const SessionOptions& options) {
  std::unique_ptr<Backend> backend = make_backend(options.backend).take();
  if (!options.code_of.empty()) backend->take_code_of(options.code_of);
  return backend;
}

Prepared prepare(const ModelConfig& config, SessionOptions options) {
  NPU_CHECK(!options.auto_placement, "the placement is still to be found");
  Prepared out;
  out.backend = open_backend(options);
  const Traits& traits = out.backend->traits();
  options.backend = traits.name;
  options.graphs.layer.activation_dtype = options.activation_dtype.value_or(traits.compute_dtype);
  options.graphs.layer.head_logits = !traits.exact_f32;
  options.graphs.layer.arithmetic_head = traits.arithmetic_head;
  options.graphs.few_graphs = traits.dear_compiles;
  options.plan.limits = {traits.limits.contractions, traits.limits.nodes, traits.limits.inputs,
                         traits.limits.outputs};
  if (options.max_contractions) options.plan.limits.contractions = *options.max_contractions;
  options.plan.host_groups = {traits.host_parts.begin(), traits.host_parts.end()};
  if (options.host_groups) options.plan.host_groups = *options.host_groups;
  options.plan.compile.threads = options.threads;
  options.plan.compile.vendor = vendor_options(traits, options.vendor);
  options.graphs.passes = options.plan.passes;
  options.compile.origin = origin_of(config, options);
  out.graphs = build_model_graphs(config, options.graphs);
  choose_cuts(options, *out.backend);
  out.plan = make_plan(out.graphs.graphs, *out.backend, options.plan);
  options.plan.choose_cut = nullptr;  // it refers to this backend
  out.options = std::move(options);
  return out;
}

CompileReport compile(Prepared& prepared) {
  return compile_plan(prepared.plan, *prepared.backend, prepared.options.plan.compile,
                      prepared.options.compile);
}

CompileReport recall(Prepared& prepared) {
  return recall_plan(prepared.plan, *prepared.backend, prepared.options.plan.compile,
                     prepared.options.compile);
}

std::unique_ptr<ModelRunner> load(const ModelConfig& config, Prepared prepared,
                                  const WeightStore& weights, bool adopt_weights) {
  DeviceOptions device_options;
  device_options.threads = prepared.options.threads;
  device_options.prepack = prepacks(prepared) != nullptr;
  const int threads = device_options.threads;
  auto runtime =
      Runtime::create(std::move(prepared.plan), *prepared.backend, device_options).take();
  return std::make_unique<ModelRunner>(config, std::move(prepared.graphs), std::move(runtime),
                                       weights, adopt_weights, threads);
}

const Traits* prepacks(const SessionOptions& options, const Traits& traits) {
  return options.prepack.value_or(traits.prepack == Prepack::kByDefault) ? &traits : nullptr;
}

MemoryEstimate estimate_memory(const ModelConfig& config, const ModelGraphs& graphs,
                               const Traits* prepack) {
  const GraphOptions& o = graphs.options;
  const int64_t weight_bytes = static_cast<int64_t>(dtype_bytes(o.layer.weight_dtype));
  const int64_t compute_bytes = static_cast<int64_t>(dtype_bytes(o.layer.compute_dtype()));
  const int64_t stream_bytes = static_cast<int64_t>(dtype_bytes(o.layer.stream_dtype()));
  const int64_t layers = config.num_hidden_layers, rows_M = o.layer.batch * o.layer.seq_len;
  MemoryEstimate memory;
  int64_t linear_elements = 0, adapter_elements = 0;
  for (const Linear& linear : linears()) {
    linear_elements += linear.in(config)*linear.out(config);
    if (o.layer.lora.has(linear.name)) {
      adapter_elements += o.layer.lora.rank * (linear.in(config) + linear.out(config));
    }
  }
  const int64_t embedding = config.vocab_size * config.hidden_size;
  memory.weights = (layers * linear_elements + embedding) * weight_bytes +
                   layers * (2 * config.hidden_size * compute_bytes + adapter_elements * 4);
  if (!config.tie_word_embeddings) memory.weights += embedding * weight_bytes;
  const bool keeps =
      prepack != nullptr && (!prepack->prepack_bf16_only || o.layer.weight_dtype == DType::kBF16);
  if (keeps) {
    const bool as_it_lies = prepack->forward_reads_bf16 && o.layer.weight_dtype == DType::kBF16;
    const int64_t directions = (as_it_lies ? 0 : 1) + (o.train ? 1 : 0);
    memory.prepacked = directions * (layers * linear_elements + embedding) * prepack->prepack_bytes;
  }
  const int64_t kept = o.train ? layers + 3 : 2;
  memory.activations = kept * rows_M * config.hidden_size * stream_bytes +
                       o.layer.batch * o.layer.seq_len * o.layer.seq_len * compute_bytes;
  memory.saved = layers * graphs.longest().saved_bytes_per_layer();
  // One chunk's logits and their exponentials are live inside a head part.
  memory.head = 3 * o.loss_rows * (graphs.chunks.empty() ? 0 : graphs.chunks[0]) * 4;
  memory.optimizer = o.train ? layers * adapter_elements * 16 : 0;
  return memory;
}

double host_matmul_rate(const ModelConfig& config, const LayerOptions& options, int threads) {
  Builder builder("matmul_rate");
  const int64_t rows_M = options.batch * options.seq_len;
  const Value x = builder.input("x", {DType::kF32, {rows_M, config.hidden_size}});
  const Value w = builder.input("w", {DType::kF32, {config.intermediate_size, config.hidden_size}});
  builder.output("y", ops::matmul(x, w, {.transpose_rhs = true}));
  const Graph graph = std::move(builder).build();
  const auto backend = make_backend("cpu").take();
  const auto device = backend->open({.threads = threads}).take();
  const auto executable = device->load(backend->compile(graph, {}).take(), graph).take();
  std::vector<DeviceTensor> values;
  for (const NodeId id : graph.inputs()) {
    values.push_back(allocate_tensor(*device, graph.node(id).type, "matmul rate"));
  }
  values.push_back(
      allocate_tensor(*device, graph.node(graph.outputs()[0].node).type, "matmul rate"));
  Buffer* const inputs[] = {values[0].buffer.get(), values[1].buffer.get()};
  Buffer* const outputs[] = {values[2].buffer.get()};
  double best_seconds = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    device->wait(device->submit(*executable, inputs, outputs).take());
    best_seconds =
        std::min(best_seconds,
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return graph.contraction_flops() / best_seconds;
}

}  // namespace npu
