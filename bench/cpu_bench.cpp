// The cpu backend on the graphs of a SmolLM2-135M decoder layer and of the loss: seconds a call,
// GFLOP/s and their share of this machine's f32 product, and for each kind of step the CPU time it
// takes.
//
//   cpu_bench --benchmark_filter='forward/512'
//   cpu_bench --steps [bf16]     (one line per step, slowest first)
#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "backend/cpu_matmul.h"
#include "backend/cpu_run.h"
#include "base/random.h"
#include "model/model.h"
#include "ops/ops.h"
#include "transform/passes.h"
#include "transform/vjp.h"

namespace npu {
namespace {

ModelConfig smollm2() {
  ModelConfig config;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_hidden_layers = 30;
  config.num_attention_heads = 9;
  config.num_key_value_heads = 3;
  config.head_dim = 64;
  config.vocab_size = 49152;
  config.max_position_embeddings = 8192;
  config.tie_word_embeddings = true;
  return config;
}

enum class Part { kForward, kBackward, kLoss };

Graph part_graph(Part part, int64_t seq_len, DType dtype) {
  LayerOptions options;
  options.seq_len = seq_len;
  options.weight_dtype = DType::kBF16;
  options.activation_dtype = dtype;
  if (part == Part::kLoss) {
    return run_passes(ce_grad(smollm2(), options, seq_len, 8192), default_passes());
  }
  std::vector<std::string> wrt = trained_inputs(options.lora);
  wrt.insert(wrt.begin(), "x");
  const Graph joint =
      run_passes(vjp(layer_forward(smollm2(), options), {"y"}, wrt).take(), default_passes());
  ForwardBackward split = split_joint(joint, 1, Recompute::kNone);
  return part == Part::kForward ? split.forward : split.backward;
}

// A part with its buffers. Weights lie as bf16, as those of published checkpoints do.
class Loaded {
 public:
  Loaded(Graph graph, cpu::ProductUnit unit)
      : graph_(std::move(graph)),
        workspace_(pool_.threads()),
        runner_(cpu::make_plan(graph_, unit), pool_.threads()) {
    cpu::use_single_threaded_blas();
    workspace_.reserve(runner_.plan());
    for (const NodeId id : graph_.inputs())
      add(graph_.node(id).type, graph_.node(id).name, inputs_);
    for (const GraphOutput& output : graph_.outputs()) {
      add(graph_.node(output.node).type, "", outputs_);
    }
    for (const cpu::PackedWeight& weight : runner_.plan().weights) add_packed(weight);
  }
  void run() { runner_.run(pool_, workspace_, inputs_, outputs_, weights_); }
  const Graph& graph() const { return graph_; }
  int threads() const { return pool_.threads(); }
  cpu::PlanRunner& runner() { return runner_; }

 private:
  void add(const TensorType& type, const std::string& name, std::vector<std::byte*>& list) {
    Tensor tensor(type.dtype, type.shape);
    const RandomStream random(1, name);
    uint64_t draw = 0;
    const auto next = [&] { return 0.05f * static_cast<float>(random.normal(draw++)); };
    if (type.dtype == DType::kF32 && !name.empty()) {
      for (float& value : tensor.mutable_values<float>()) value = next();
    } else if (type.dtype == DType::kBF16) {
      for (uint16_t& bits : tensor.mutable_values<uint16_t>()) bits = bf16_from_f32(next());
    }
    if (name == "mask") close_future(tensor);
    list.push_back(tensor.mutable_data());
    tensors_.push_back(std::move(tensor));
  }

  // The causal mask [1,1,S,S] of one document.
  static void close_future(Tensor& mask) {
    const int64_t seq_len = mask.shape().back();
    const auto fill = [&](auto values, auto closed) {
      for (int64_t i = 0; i < seq_len * seq_len; ++i) {
        values[static_cast<size_t>(i)] = i % seq_len > i / seq_len ? closed : 0;
      }
    };
    const auto closed = static_cast<float>(mask_value(mask.dtype()));
    if (mask.dtype() == DType::kF32) return fill(mask.mutable_values<float>(), closed);
    fill(mask.mutable_values<uint16_t>(), bf16_from_f32(closed));
  }

  void add_packed(const cpu::PackedWeight& weight) {
    packed_.push_back(allocate_aligned(static_cast<size_t>(cpu::packed_bytes(weight))));
    weights_.push_back(packed_.back().get());
    cpu::pack_weight(weight, inputs_[weight.input], 0, weight.x, packed_.back().get());
  }

  Graph graph_;
  ThreadPool pool_;
  cpu::Workspace workspace_;
  cpu::PlanRunner runner_;
  std::vector<Tensor> tensors_;
  std::vector<std::byte*> inputs_, outputs_;
  std::vector<std::shared_ptr<std::byte>> packed_;
  std::vector<const std::byte*> weights_;
};

double step_flops(const cpu::Step& step) {
  const auto* gemm = std::get_if<cpu::GemmStep>(&step.work);
  if (gemm == nullptr) return 0;
  return 2.0 * static_cast<double>(gemm->space.rows) * static_cast<double>(gemm->n) *
         static_cast<double>(gemm->k);
}

// CPU seconds of a call by step, each the least of several calls.
std::vector<double> least_step_seconds(Loaded& loaded, int calls) {
  std::vector<double> before = loaded.runner().step_seconds();
  std::vector<double> least(before.size(), 1e9);
  for (int i = 0; i < calls; ++i) {
    loaded.run();
    const std::vector<double> after = loaded.runner().step_seconds();
    for (size_t s = 0; s < least.size(); ++s) least[s] = std::min(least[s], after[s] - before[s]);
    before = after;
  }
  return least;
}

void run_part(benchmark::State& state, Part part, cpu::ProductUnit unit) {
  if (unit > cpu::best_product_unit()) return state.SkipWithError("this CPU has no such unit");
  Loaded loaded(part_graph(part, state.range(0), DType::kF32), unit);
  loaded.run();
  for (auto _ : state) loaded.run();
  const double flops = loaded.graph().contraction_flops();
  state.counters["GFLOP/s"] = benchmark::Counter(
      1e-9 * flops * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  double products = 0, loops = 0;
  const std::vector<double> seconds = least_step_seconds(loaded, 10);
  for (size_t i = 0; i < seconds.size(); ++i) {
    (step_flops(loaded.runner().plan().steps[i]) > 0 ? products : loops) += seconds[i];
  }
  state.counters["products_cpu_ms"] = 1e3 * products;
  state.counters["loops_cpu_ms"] = 1e3 * loops;
}

// The f32 product that shares are taken of: 1024³, as the plan runs it.
void run_square(benchmark::State& state, cpu::ProductUnit unit) {
  if (unit > cpu::best_product_unit()) return state.SkipWithError("this CPU has no such unit");
  Builder b("square");
  const Value x = b.input("x", {DType::kF32, {1024, 1024}});
  const Value w = b.input("w.weight", {DType::kF32, {1024, 1024}});
  b.output("y", ops::matmul(x, w, {.transpose_rhs = true}));
  Loaded loaded(std::move(b).build(), unit);
  for (auto _ : state) loaded.run();
  state.counters["GFLOP/s"] = benchmark::Counter(
      1e-9 * loaded.graph().contraction_flops() * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}

void print_steps(DType dtype) {
  for (const auto& [name, part] : {std::pair("forward", Part::kForward),
                                   {"backward", Part::kBackward},
                                   {"loss", Part::kLoss}}) {
    for (const int64_t seq_len : {128, 512}) {
      Loaded loaded(part_graph(part, seq_len, dtype), cpu::best_product_unit());
      const std::vector<double> seconds = least_step_seconds(loaded, 30);
      std::vector<size_t> order(seconds.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::sort(order.begin(), order.end(),
                [&](size_t a, size_t b) { return seconds[a] > seconds[b]; });
      std::printf("%s, %d rows: CPU ms, GFLOP/s of one thread, step\n", name,
                  static_cast<int>(seq_len));
      for (const size_t i : order) {
        const cpu::Step& step = loaded.runner().plan().steps[i];
        const std::string text = step_text(loaded.runner().plan(), step);
        std::printf("%8.3f %6.0f  %s\n", 1e3 * seconds[i], 1e-9 * step_flops(step) / seconds[i],
                    text.c_str());
      }
    }
  }
}

void register_all() {
  for (const auto& [suffix, unit] : {std::pair(std::string("/amx"), cpu::ProductUnit::kAmx),
                                     {"/vector", cpu::ProductUnit::kVector},
                                     {"/blas", cpu::ProductUnit::kBlas}}) {
    benchmark::RegisterBenchmark(("square" + suffix).c_str(), run_square, unit)->UseRealTime();
    for (const auto& [name, part] : {std::pair("forward", Part::kForward),
                                     {"backward", Part::kBackward},
                                     {"loss", Part::kLoss}}) {
      benchmark::RegisterBenchmark((name + suffix).c_str(), run_part, part, unit)
          ->Arg(128)
          ->Arg(512)
          ->Unit(benchmark::kMillisecond)
          ->UseRealTime();
    }
  }
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--steps") == 0) {
    const bool bf16 = argc > 2 && std::strcmp(argv[2], "bf16") == 0;
    npu::print_steps(bf16 ? npu::DType::kBF16 : npu::DType::kF32);
    return 0;
  }
  benchmark::Initialize(&argc, argv);
  npu::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
