#include "backend_cases.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "model/model.h"
#include "ops/ops.h"
#include "ops/table.h"
#include "transform/vjp.h"

namespace npu {
namespace {

std::string family_of(const OpDef& op) {
  if (op.traits.contraction) return "contraction";
  if (op.traits.reduction) return "reduction";
  if (op.traits.movement) return "movement";
  return std::string(op.name);
}

ModelConfig small_model() {
  ModelConfig config;
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.vocab_size = 90;
  config.max_position_embeddings = 64;
  return config;
}

LayerOptions small_options() {
  LayerOptions options;
  options.batch = 2;
  options.seq_len = 12;
  options.lora.rank = 4;
  options.lora.targets = parse_targets("all");
  return options;
}

Graph backward_of(const Graph& forward, const std::string& seed, std::vector<std::string> wrt) {
  Graph joint = vjp(forward, {seed}, wrt).take();
  return split_joint(joint, forward.outputs().size(), Recompute::kLayer).backward;
}

// Scalars, sizes that fit no vector width, a batch of matmuls.
Graph binding_graph(const std::string& kind) {
  Builder b(kind);
  const Value x = b.input("x", {DType::kF32, {5, 7}});
  const Value y = b.input("y", {DType::kF32, {5, 7}});
  const Value sum = ops::add(x, y);
  if (kind == "output_is_input") {
    b.output("sum", sum);
    b.output("same", y);
  } else if (kind == "only_inputs") {
    b.output("second", y);
    b.output("first", x);
  } else if (kind == "output_twice") {
    b.output("one", sum);
    b.output("two", sum);
    b.output("three", ops::reshape(sum, {7, 5}));
  } else if (kind == "input_unused") {
    b.input("unused", {DType::kF32, {3}});
    b.output("sum", sum);
  } else if (kind == "moved_inputs") {
    b.output("reshaped", ops::reshape(y, {35, 1}));
    b.output("turned", ops::transpose(x, {1, 0}));
    b.output("cut", ops::slice(y, {1, 0}, {4, 7}));
    b.output("joined", ops::concat(std::vector<Value>{x, y}, 1));
    b.output("sum", sum);
  } else if (kind == "vanishing_ops") {
    b.output("times_one", ops::scale(x, 1.0));
    b.output("plus_zero", ops::add_scalar(y, 0.0));
    b.output("same_shape", ops::broadcast(y, {5, 7}));
    b.output("sum", sum);
  } else if (kind == "constant_output") {
    b.output("zeros", ops::constant(b, {DType::kF32, {2, 3}}, 0.0));
    b.output("sum", sum);
  } else if (kind == "shared_names") {
    b.output("y", ops::sub(x, y));
    b.output("x", sum);
  } else if (kind == "odd_names") {
    const Value odd = b.input("a,b<c>&\"d\" é", {DType::kF32, {5, 7}});
    b.output("o,1<&>", ops::mul(sum, odd));
  } else if (kind == "widened_weight") {
    const Value weight = b.input("w", {DType::kBF16, {9, 7}});
    b.output("product", ops::matmul(x, ops::convert(weight, DType::kF32), {.transpose_rhs = true}));
    b.output("half", ops::convert(b.input("h", {DType::kF16, {4}}), DType::kF32));
  } else if (kind == "narrowed_output") {
    b.output("narrow", ops::convert(sum, DType::kBF16));
    b.output("moved", ops::transpose(b.input("h", {DType::kBF16, {3, 4}}), {1, 0}));
  }
  return std::move(b).build();
}

}  // namespace

std::vector<BackendCase> row_cases() {
  std::vector<BackendCase> cases;
  for (const OpDef* op : op_table()) {
    int number = 0;
    for (const OpSample& sample : op->samples()) {
      Builder builder(std::string(op->name));
      std::vector<Value> operands;
      for (size_t i = 0; i < sample.inputs.size(); ++i) {
        operands.push_back(builder.input("x" + std::to_string(i), sample.inputs[i]));
      }
      builder.output("y", builder.apply(*op, operands, sample.attrs));
      cases.push_back({std::string(op->name) + "_" + std::to_string(number++), family_of(*op),
                       std::move(builder).build(), sample.low, sample.high, sample.low,
                       sample.high});
    }
  }
  return cases;
}

std::vector<BackendCase> layer_cases() {
  const ModelConfig config = small_model();
  const LayerOptions options = small_options();
  constexpr int64_t kLossRows = 7, kChunk = 45;
  std::vector<BackendCase> cases;
  // Integer inputs are rows of the batch, or targets of which some lie outside the chunk.
  const auto add = [&](const std::string& name, Graph graph, double int_low, double int_high) {
    cases.push_back({name, "layer", std::move(graph), -0.5, 0.5, int_low, int_high});
  };
  const double last_row = static_cast<double>(options.batch * options.seq_len - 1);
  const Graph layer = layer_forward(config, options);
  std::vector<std::string> wrt = trained_inputs(options.lora);
  wrt.insert(wrt.begin(), "x");
  add("layer_forward", layer, 0, 0);
  add("layer_backward", backward_of(layer, "y", wrt), 0, 0);
  const Graph norm = final_norm(config, options, kLossRows);
  add("final_norm", norm, 0, last_row);
  add("final_norm_backward", backward_of(norm, "h", {"x"}), 0, last_row);
  add("ce_stats", ce_stats(config, options, kLossRows, kChunk), -3, kChunk + 2);
  add("ce_grad", ce_grad(config, options, kLossRows, kChunk), -3, kChunk + 2);
  LayerOptions narrow = options;
  narrow.weight_dtype = DType::kBF16;
  add("layer_forward_bf16_weights", layer_forward(config, narrow), 0, 0);
  return cases;
}

std::vector<BackendCase> binding_cases() {
  std::vector<BackendCase> cases;
  for (const char* kind : {"output_is_input", "only_inputs", "output_twice", "input_unused",
                           "moved_inputs", "vanishing_ops", "constant_output", "shared_names",
                           "odd_names", "widened_weight", "narrowed_output"}) {
    cases.push_back({kind, "layer", binding_graph(kind)});
  }
  return cases;
}

Inputs random_inputs(const BackendCase& test_case, uint64_t seed) {
  Inputs inputs;
  for (const NodeId id : test_case.graph.inputs()) {
    const Node& node = test_case.graph.node(id);
    const RandomStream stream(seed, node.name);
    Tensor tensor(node.type.dtype, node.type.shape);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      const double u = stream.uniform(static_cast<uint64_t>(i));
      double value = test_case.low + u * (test_case.high - test_case.low);
      if (node.type.dtype == DType::kPred) {
        value = u < 0.5 ? 0 : 1;
      } else if (!is_float(node.type.dtype)) {
        value = std::floor(test_case.int_low + u * (test_case.int_high - test_case.int_low + 1));
      }
      set_element(tensor, i, value);
    }
    inputs.emplace(node.name, std::move(tensor));
  }
  return inputs;
}

}  // namespace npu
