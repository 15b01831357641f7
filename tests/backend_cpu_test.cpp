// The fast cpu executor against the meaning of graphs: random graphs, layers, awkward shapes,
// threads, and calls that must be refused. (Rows one by one: backend_conformance_test.)
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "cpu_calls.h"
#include "ir/text.h"
#include "model/model.h"
#include "ops/ops.h"
#include "ops/table.h"
#include "random_graph.h"
#include "transform/passes.h"
#include "transform/vjp.h"

namespace npu {
namespace {

// Weights of the size that models have: products keep the size of their rows, and exponentials
// don't magnify rounding.
NamedTensors model_inputs(const Graph& graph, uint64_t seed) {
  NamedTensors inputs = random_inputs(graph, seed);
  for (auto& [name, tensor] : inputs) {
    if (!is_float(tensor.dtype()) || tensor.shape().size() != 2) continue;
    const double fan_in = static_cast<double>(tensor.shape()[1]);
    const bool weight =
        name.find("weight") != std::string::npos || name.find("lora_A") != std::string::npos;
    const double factor = weight && tensor.shape()[0] > 1 ? 1 / std::sqrt(fan_in) : 1;
    for (int64_t i = 0; i < tensor.size(); ++i) {
      set_element(tensor, i, element(tensor, i) * factor);
    }
  }
  return inputs;
}

ModelConfig model_of(int64_t hidden, int64_t heads, int64_t kv, int64_t head_dim) {
  ModelConfig config;
  config.hidden_size = hidden;
  config.intermediate_size = 3 * hidden - 5;
  config.num_hidden_layers = 2;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv;
  config.head_dim = head_dim;
  config.vocab_size = 1000;
  config.max_position_embeddings = 256;
  return config;
}

LayerOptions options_of(int64_t batch, int64_t seq_len, DType weights = DType::kF32) {
  LayerOptions options;
  options.batch = batch;
  options.seq_len = seq_len;
  options.weight_dtype = weights;
  options.lora.rank = 8;
  return options;
}

Graph joint_layer(const ModelConfig& config, const LayerOptions& options) {
  std::vector<std::string> wrt = trained_inputs(options.lora);
  wrt.insert(wrt.begin(), "x");
  return run_passes(vjp(layer_forward(config, options), {"y"}, wrt).take(), default_passes());
}

// ---- against the reference ---------------------------------------------------------------------

TEST(CpuBackend, RandomGraphsOfAnyRow) {
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const Graph graph = random_graph(seed, RandomOps::kAll);
    const NamedTensors inputs = random_inputs(graph, seed);
    const std::string where =
        value_difference(run_cpu(graph, inputs), run_graph(graph, inputs), 1e-5);
    ASSERT_EQ(where, "") << "seed " << seed << "\n" << print_graph(graph);
  }
}

TEST(CpuBackend, LayersForwardAndBackward) {
  // The reference sums in order of k, which alone is off by about 1e-6 after a layer.
  constexpr double kDeep = 4e-6;
  struct Case {
    ModelConfig config;
    LayerOptions options;
    double bound;
  };
  const Case cases[] = {
      {model_of(64, 4, 2, 16), options_of(1, 32), kDeep},
      {model_of(72, 9, 3, 8), options_of(3, 17), kDeep},
      {model_of(40, 5, 1, 8), options_of(2, 1), kDeep},      // one token a sequence
      {model_of(48, 6, 6, 8), options_of(2, 33), kDeep},     // as many key heads as query heads
      {model_of(576, 9, 3, 64), options_of(1, 128), kDeep},  // SmolLM2-135M
      {model_of(64, 4, 2, 16), options_of(2, 16, DType::kBF16), kDeep},
      {model_of(64, 4, 2, 16), options_of(2, 16, DType::kF16), kDeep},
  };
  for (const Case& c : cases) {
    const Graph joint = joint_layer(c.config, c.options);
    expect_near_reference(joint, model_inputs(joint, 1), c.bound);
  }
}

TEST(CpuBackend, LayersInSixteenBits) {
  LayerOptions options = options_of(2, 16, DType::kBF16);
  options.activation_dtype = DType::kBF16;
  const Graph forward = layer_forward(model_of(64, 4, 2, 16), options);
  // Sums in another order round to a neighbour now and then.
  expect_near_reference(forward, model_inputs(forward, 1), 0x1p-8);
}

TEST(CpuBackend, LossChunks) {
  const ModelConfig config = model_of(64, 4, 2, 16);
  for (const DType weights : {DType::kF32, DType::kBF16}) {
    const LayerOptions options = options_of(1, 32, weights);
    for (const Graph& graph :
         {ce_grad(config, options, 24, 1000), ce_stats(config, options, 24, 1000),
          ce_grad(config, options, 24, 6151), final_norm(config, options, 24)}) {
      expect_near_reference(graph, model_inputs(graph, 2), 2e-6);
    }
  }
}

// ---- shapes and layouts ------------------------------------------------------------------------

TEST(CpuBackend, BroadcastPatterns) {
  const Shape shapes[] = {{2, 3, 5, 7}, {1, 3, 5, 7}, {2, 1, 5, 7}, {2, 3, 1, 7}, {2, 3, 5, 1},
                          {1, 1, 5, 1}, {2, 1, 1, 7}, {1, 3, 1, 1}, {1, 1, 1, 7}, {1, 1, 1, 1}};
  for (const Shape& a : shapes) {
    for (const Shape& c : shapes) {
      Builder b("broadcast");
      const Value x = b.input("x", {DType::kF32, a}), y = b.input("y", {DType::kF32, c});
      const Value whole = b.input("z", {DType::kF32, {2, 3, 5, 7}});
      const Value sum = ops::mul(ops::add(ops::exp(x), y), whole);
      b.output("sum", sum);
      b.output("rows", ops::reduce_max(sum, {3}));
      b.output("chosen",
               ops::select(ops::compare(x, y, "lt"), ops::broadcast(x, sum.shape()), sum));
      const Graph graph = std::move(b).build();
      expect_near_reference(graph, random_inputs(graph, 3), 1e-6);
    }
  }
}

// Every way in which an operand of a product can lie: transposed, sliced, permuted, repeated.
TEST(CpuBackend, ProductsReadStridedOperands) {
  const auto variants = [](Value x, int64_t rows, int64_t cols) {
    // x is f32 [4, 12, 10]; each result is [2, rows, cols].
    std::vector<Value> list;
    const Value window = ops::slice(x, {1, 2, 1}, {3, 2 + rows, 1 + cols});
    list.push_back(window);
    list.push_back(ops::transpose(ops::slice(x, {0, 1, 2}, {2, 1 + cols, 2 + rows}), {0, 2, 1}));
    list.push_back(ops::broadcast(ops::slice(x, {0, 0, 0}, {1, rows, cols}), {2, rows, cols}));
    list.push_back(ops::broadcast(ops::slice(x, {0, 0, 0}, {2, 1, cols}), {2, rows, cols}));
    list.push_back(ops::broadcast(ops::slice(x, {0, 0, 0}, {2, rows, 1}), {2, rows, cols}));
    list.push_back(ops::transpose(
        ops::reshape(ops::slice(x, {0, 0, 0}, {2, rows, cols}), {2, rows, cols}), {0, 1, 2}));
    list.push_back(ops::transpose(
        ops::slice(ops::transpose(x, {1, 0, 2}), {0, 1, 0}, {rows, 3, cols}), {1, 0, 2}));
    list.push_back(ops::transpose(
        ops::slice(ops::transpose(x, {2, 1, 0}), {0, 0, 1}, {cols, rows, 3}), {2, 1, 0}));
    return list;
  };
  for (const ops::MatmulFlags flags :
       {ops::MatmulFlags{}, {true, false}, {false, true}, {true, true}}) {
    Builder b("strided");
    const Value x = b.input("x", {DType::kF32, {4, 12, 10}});
    const Value y = b.input("y", {DType::kF32, {4, 12, 10}});
    const auto lhs = variants(x, flags.transpose_lhs ? 5 : 6, flags.transpose_lhs ? 6 : 5);
    const auto rhs = variants(y, flags.transpose_rhs ? 7 : 5, flags.transpose_rhs ? 5 : 7);
    for (size_t i = 0; i < lhs.size(); ++i) {
      for (size_t j = 0; j < rhs.size(); ++j) {
        b.output("y" + std::to_string(i) + std::to_string(j), ops::matmul(lhs[i], rhs[j], flags));
      }
    }
    const Graph graph = std::move(b).build();
    expect_near_reference(graph, random_inputs(graph, 4), 1e-6);
  }
}

TEST(CpuBackend, ResultsAreWrittenInTheReadersOrder) {
  Builder b("layouts");
  const Value x = b.input("x", {DType::kF32, {2, 3, 4, 5}});
  const Value w = b.input("w", {DType::kF32, {2, 3, 5, 6}});
  const Value heads = ops::matmul(x, w);  // [2,3,4,6]
  const Value merged = ops::reshape(ops::transpose(heads, {0, 2, 1, 3}), {8, 18});
  b.output("product", ops::matmul(merged, b.input("o", {DType::kF32, {18, 5}})));
  const Value sum = ops::add(x, x);
  b.output("turned", ops::transpose(sum, {3, 1, 0, 2}));
  b.output("permuted", ops::reshape(ops::transpose(ops::exp(x), {0, 2, 1, 3}), {8, 15}));
  b.output("input_turned", ops::transpose(x, {1, 0, 3, 2}));
  b.output("same", x);
  b.output("again", sum);
  b.output("flat", ops::reshape(sum, {120}));
  const Graph graph = std::move(b).build();
  expect_near_reference(graph, random_inputs(graph, 5), 1e-6);
}

TEST(CpuBackend, AwkwardSizes) {
  for (const Shape& shape : {Shape{1, 1}, Shape{1, 100003}, Shape{100003, 1}, Shape{3, 4099},
                             Shape{17, 4096}, Shape{257, 31}}) {
    Builder b("sizes");
    const Value x = b.input("x", {DType::kF32, shape});
    const Value y = b.input("y", {DType::kBF16, {1, shape[1]}});
    const Value scaled = ops::mul(ops::sigmoid(x), ops::convert(y, DType::kF32));
    b.output("scaled", scaled);
    b.output("rounded", ops::convert(scaled, DType::kBF16));
    b.output("weights", ops::softmax(scaled));
    b.output("columns", ops::reduce_sum(scaled, {0}));
    b.output("all", ops::reduce_sum(scaled, {0, 1}));
    b.output("halves", ops::pad(scaled, {0, 3}, {0, 5}));
    const Value parts[] = {scaled, ops::neg(scaled), x};
    b.output("joined", ops::concat(parts, 1));
    b.output("below", ops::concat(parts, 0));
    const Graph graph = std::move(b).build();
    expect_near_reference(graph, random_inputs(graph, 6), 1e-6);
  }
}

// Larger than one block, chunk or panel, in all dtypes that BLAS has not.
TEST(CpuBackend, LargeProductsInSixteenBits) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    Builder b("wide");
    const Value x = b.input("x", {dtype, {130, 3000}});
    const Value w = b.input("w", {dtype, {520, 3000}});
    const Value v = b.input("v", {dtype, {3000, 520}});
    b.output("nt", ops::matmul(ops::convert(x, DType::kF32), ops::convert(w, DType::kF32),
                               {.transpose_rhs = true}));
    b.output("nn", ops::matmul(x, v));
    b.output("tt", ops::matmul(ops::convert(v, DType::kF32), ops::convert(x, DType::kF32),
                               {.transpose_lhs = true, .transpose_rhs = true}));
    const Graph graph = std::move(b).build();
    const NamedTensors inputs = random_inputs(graph, 7);
    const NamedTensors want = run_graph(graph, inputs), got = run_cpu(graph, inputs);
    EXPECT_LE(difference(got.at("nt"), want.at("nt")).rel_l2, 2e-6);
    EXPECT_LE(difference(got.at("tt"), want.at("tt")).rel_l2, 2e-6);
    EXPECT_LE(difference(got.at("nn"), want.at("nn")).rel_l2, 0x1p-9);
  }
}

// ---- determinism -------------------------------------------------------------------------------

TEST(CpuBackend, ThreadsDontChangeBits) {
  std::vector<Graph> graphs;
  graphs.push_back(joint_layer(model_of(576, 9, 3, 64), options_of(1, 128)));
  graphs.push_back(joint_layer(model_of(64, 4, 2, 16), options_of(3, 40, DType::kBF16)));
  graphs.push_back(ce_grad(model_of(192, 4, 2, 16), options_of(1, 32), 150, 5000));
  for (const Graph& graph : graphs) {
    const NamedTensors inputs = random_inputs(graph, 8);
    const Loaded one = load(graph, 1);
    const NamedTensors want = call(one, graph, inputs);
    EXPECT_EQ(bit_difference(call(one, graph, inputs), want), "") << "a second run";
    for (const int threads : {2, 3, 5}) {
      const Loaded loaded = load(graph, threads);
      for (int run = 0; run < 5; ++run) {
        ASSERT_EQ(bit_difference(call(loaded, graph, inputs), want), "") << threads << " threads";
      }
    }
  }
}

TEST(CpuBackend, PartsOnOneDeviceShareItsMemory) {
  const auto device = open_cpu(2);
  std::vector<Graph> graphs;
  for (uint64_t seed = 0; seed < 8; ++seed)
    graphs.push_back(random_graph(seed, RandomOps::kSmooth));
  std::vector<Loaded> loaded(graphs.size());
  std::vector<NamedTensors> want;
  for (size_t i = 0; i < graphs.size(); ++i) {
    want.push_back(run_cpu(graphs[i], random_inputs(graphs[i], i)));
  }
  std::vector<std::unique_ptr<Executable>> executables;
  for (const Graph& graph : graphs) {
    executables.push_back(device->load(make_cpu()->compile(graph, {}).take(), graph).take());
  }
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < graphs.size(); ++i) {
      Loaded view{nullptr, nullptr};
      NamedTensors inputs = random_inputs(graphs[i], i);
      std::vector<std::shared_ptr<Buffer>> owned;
      std::vector<Buffer*> in, out;
      for (const NodeId id : graphs[i].inputs()) {
        owned.push_back(device->adopt(inputs.at(graphs[i].node(id).name)).take());
        in.push_back(owned.back().get());
      }
      for (const GraphOutput& output : graphs[i].outputs()) {
        const Tensor& reference = want[i].at(output.name);
        owned.push_back(device->allocate(reference.bytes()).take());
        out.push_back(owned.back().get());
      }
      ASSERT_TRUE(device->submit(*executables[i], in, out).ok());
      for (size_t o = 0; o < out.size(); ++o) {
        const Tensor& reference = want[i].at(graphs[i].outputs()[o].name);
        EXPECT_EQ(std::memcmp(out[o]->host_pointer(), reference.data(), reference.bytes()), 0);
      }
    }
  }
}

// ---- calls and blobs that must be refused ------------------------------------------------------

class Refusals : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    backend_ = make_backend(GetParam()).take();
    device_ = backend_->open({.threads = 2}).take();
    Builder b("pair");
    const Value x = b.input("x", {DType::kF32, {4, 4}}), y = b.input("y", {DType::kF32, {4, 4}});
    b.output("sum", ops::add(x, y));
    b.output("product", ops::matmul(x, y));
    graph_ = std::move(b).build();
    executable_ = device_->load(backend_->compile(graph_, {}).take(), graph_).take();
    for (int i = 0; i < 4; ++i) buffers_.push_back(device_->allocate(64).take());
  }
  Result<Device::Ticket> submit(std::vector<Buffer*> in, std::vector<Buffer*> out) {
    return device_->submit(*executable_, in, out);
  }
  Buffer* buffer(size_t i) { return buffers_[i].get(); }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Device> device_;
  Graph graph_;
  std::unique_ptr<Executable> executable_;
  std::vector<std::shared_ptr<Buffer>> buffers_;
};

TEST_P(Refusals, GoodCall) {
  EXPECT_TRUE(submit({buffer(0), buffer(1)}, {buffer(2), buffer(3)}).ok());
  EXPECT_TRUE(submit({buffer(0), buffer(0)}, {buffer(2), buffer(3)}).ok())
      << "inputs may be shared";
}

TEST_P(Refusals, WrongCalls) {
  EXPECT_FALSE(submit({buffer(0)}, {buffer(2), buffer(3)}).ok());
  EXPECT_FALSE(submit({buffer(0), buffer(1)}, {buffer(2)}).ok());
  EXPECT_FALSE(submit({buffer(0), nullptr}, {buffer(2), buffer(3)}).ok());
  const auto small = device_->view(buffers_[1], 4, 60);
  const auto result = submit({buffer(0), small.get()}, {buffer(2), buffer(3)});
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().text().find("input y"), std::string::npos) << result.error().text();
  EXPECT_NE(result.error().text().find("60"), std::string::npos) << result.error().text();
  EXPECT_FALSE(submit({buffer(0), buffer(1)}, {buffer(2), small.get()}).ok());
  EXPECT_FALSE(submit({buffer(0), buffer(1)}, {buffer(2), buffer(2)}).ok()) << "outputs overlap";
  EXPECT_FALSE(submit({buffer(0), buffer(1)}, {buffer(0), buffer(3)}).ok()) << "output over input";
}

TEST_P(Refusals, WrongBlobs) {
  EXPECT_FALSE(device_->load("not a graph", graph_).ok());
  Builder b("other");
  b.output("y", ops::exp(b.input("x", {DType::kF32, {4, 4}})));
  const Graph other = std::move(b).build();
  EXPECT_FALSE(device_->load(backend_->compile(other, {}).take(), graph_).ok());
}

TEST_P(Refusals, MemoryThatIsNotThere) {
  const auto result = device_->allocate(size_t{1} << 60);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kRetriable);
}

TEST_P(Refusals, AdoptedMemoryIsUsedInPlace) {
  const Tensor host({DType::kF32}, {4, 4});
  const auto buffer = device_->adopt(host).take();
  EXPECT_EQ(buffer->host_pointer(), host.data());
}

INSTANTIATE_TEST_SUITE_P(Cpu, Refusals, testing::Values("cpu", "cpu:reference"),
                         [](const auto& param) {
                           return std::string(param.param) == "cpu" ? "fast" : "reference";
                         });

// Far too large to run: planning it must neither overflow nor allocate; loading it says so.
TEST(CpuBackend, HostileSizesAreRefused) {
  Builder b("huge");
  const int64_t n = int64_t{1} << 22;
  const Value x = b.input("x", {DType::kF32, {n, 4}}), y = b.input("y", {DType::kF32, {4, n}});
  Value product = ops::matmul(x, y);  // 2^46 bytes, more than one at a time
  for (int i = 0; i < 3; ++i) product = ops::matmul(product, ops::reshape(product, {n, n}));
  b.output("sum", ops::reduce_sum(product, {0, 1}));
  const Graph graph = std::move(b).build();
  const auto device = open_cpu(2);
  const auto result = device->load(print_graph(graph), graph);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kRetriable);
}

// A row's kernel that throws on one thread ends the call on all.
TEST(CpuBackend, FailuresInsideACallAreThrown) {
  Builder b("gather");
  const Value table = b.input("table", {DType::kF32, {4, 64}});
  const Value picked = ops::gather(table, b.input("rows", {DType::kI32, {512}}));
  b.output("y", ops::matmul(ops::exp(picked), picked, {.transpose_rhs = true}));
  const Graph graph = std::move(b).build();
  NamedTensors inputs = random_inputs(graph, 9);
  const Loaded loaded = load(graph, 3);
  inputs["rows"] = Tensor::from_i32({512}, std::vector<int32_t>(512, 7));
  EXPECT_THROW(call(loaded, graph, inputs), InternalError);
  inputs["rows"] = Tensor::from_i32({512}, std::vector<int32_t>(512, 3));
  const NamedTensors want = run_graph(graph, inputs);
  EXPECT_LE(difference(call(loaded, graph, inputs).at("y"), want.at("y")).rel_l2, 1e-6);
}

}  // namespace
}  // namespace npu
