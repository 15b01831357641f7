// The whole way on one page: build a graph, derive its backward, rewrite it, cut it into parts that
// a fragile compiler could take, compile and run the parts, and compare with the meaning of the
// graph.
#include <cstdio>
#include <map>

#include "backend/backend.h"
#include "ir/text.h"
#include "ops/ops.h"
#include "ops/table.h"
#include "transform/partition.h"
#include "transform/passes.h"
#include "transform/vjp.h"

namespace {

using namespace npu;
using Tensors = std::map<std::string, Tensor>;

// A linear layer with a low-rank adapter, a gate, and half the mean square as loss. Weights are
// inputs.
Graph build_model() {
  constexpr int64_t kRows = 8, kHidden = 16, kRank = 2;
  const auto f32 = [](Shape shape) { return TensorType{DType::kF32, std::move(shape)}; };
  Builder b("tiny");
  const Value x_MH = b.input("x", f32({kRows, kHidden}));
  const Value w_HH = b.input("weight", f32({kHidden, kHidden}));
  const Value a_RH = b.input("lora_A", f32({kRank, kHidden}));
  const Value b_HR = b.input("lora_B", f32({kHidden, kRank}));
  const ops::MatmulFlags times_transposed = {.transpose_rhs = true};
  const Value frozen_MH = ops::matmul(x_MH, w_HH, times_transposed);
  const Value down_MR = ops::matmul(x_MH, a_RH, times_transposed);
  const Value adapted_MH = ops::add(frozen_MH, ops::matmul(down_MR, b_HR, times_transposed));
  const Value y_MH = ops::silu(adapted_MH);
  b.output("loss", ops::scale(ops::mean(ops::mean(ops::mul(y_MH, y_MH), 0), 1), 0.5));
  return std::move(b).build();
}

// Numbers in [-0.5, 0.5] that need no random generator.
Tensor some_tensor(const TensorType& type, int64_t salt) {
  Tensor tensor(type.dtype, type.shape);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    set_element(tensor, i, static_cast<double>((i * 37 + salt * 101) % 64) / 63 - 0.5);
  }
  return tensor;
}

Tensors some_inputs(const Graph& graph) {
  Tensors inputs;
  for (const NodeId id : graph.inputs()) {
    const Node& node = graph.node(id);
    inputs[node.name] = some_tensor(node.type, static_cast<int64_t>(inputs.size()));
  }
  inputs["d_loss"].mutable_values<float>()[0] = 1;  // d loss / d loss
  return inputs;
}

// Compiles one part, runs it on values found by name, and adds its outputs to them.
void run_part(Backend& backend, Device& device, const Graph& part, Tensors& values) {
  const Blob blob = backend.compile(part, {}).take();
  const std::unique_ptr<Executable> executable = device.load(blob, part).take();
  std::vector<std::shared_ptr<Buffer>> owned;
  std::vector<Buffer*> inputs, outputs;
  for (const NodeId id : part.inputs()) {
    owned.push_back(device.adopt(values.at(part.node(id).name)).take());
    inputs.push_back(owned.back().get());
  }
  for (const GraphOutput& output : part.outputs()) {
    const size_t bytes = static_cast<size_t>(part.node(output.node).type.bytes());
    owned.push_back(device.allocate(bytes).take());
    outputs.push_back(owned.back().get());
  }
  const Device::Ticket ticket = device.submit(*executable, inputs, outputs).take();
  if (const auto error = device.wait(ticket)) throw UserError(*error);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const GraphOutput& output = part.outputs()[i];
    const TensorType& type = part.node(output.node).type;
    Tensor result(type.dtype, type.shape);
    device.download({result.mutable_data(), result.bytes()}, *outputs[i]);
    values[output.name] = result;
  }
}

int run() {
  // 1. A graph, and the same graph extended by its derivative: forward and backward in one.
  const Graph forward = build_model();
  const Graph joint = vjp(forward, {"loss"}, {"lora_A", "lora_B"}).take();

  // 2. Rewrites; the verifier runs after each pass.
  const Graph rewritten = run_passes(joint, default_passes());
  std::printf("%zu nodes, %zu with backward, %zu after rewrites:\n\n%s\n", forward.nodes().size(),
              joint.nodes().size(), rewritten.nodes().size(), print_graph(rewritten).c_str());

  // 3. Parts of at most two matmuls. They run in order and exchange values by name.
  const PartLabels labels = partition(rewritten, {.contractions = 2}).take();
  const std::vector<Part> parts = split(rewritten, labels);
  const std::unique_ptr<Backend> backend = make_backend("cpu").take();
  const std::unique_ptr<Device> device = backend->open({}).take();
  Tensors values = some_inputs(rewritten);
  for (const Part& part : parts) {
    std::printf("part of %zu nodes, %lld matmuls\n", part.graph.nodes().size(),
                static_cast<long long>(part.graph.num_contractions()));
    run_part(*backend, *device, part.graph, values);
  }

  // 4. The judge: the rows' own kernels on the graph as it was before rewrites and cuts.
  const std::vector<Tensor> expected = interpret(joint, some_inputs(joint));
  bool agree = true;
  for (size_t i = 0; i < expected.size(); ++i) {
    const std::string& name = joint.outputs()[i].name;
    const Difference d = difference(values.at(name), expected[i]);
    std::printf("%-10s relative difference %.1e\n", name.c_str(), d.rel_l2);
    agree = agree && d.finite && d.rel_l2 < 1e-5;
  }

  // 5. A step of gradient descent lowers the loss.
  const double before = element(values.at("loss"), 0);
  for (const std::string name : {"lora_A", "lora_B"}) {
    Tensor& weight = values.at(name);
    const Tensor& gradient = values.at("d_" + name);
    for (int64_t i = 0; i < weight.size(); ++i) {
      set_element(weight, i, element(weight, i) - 0.1 * element(gradient, i));
    }
  }
  const double after = element(interpret(forward, values)[0], 0);
  std::printf("loss %.6f, after one step %.6f\n", before, after);
  return agree && after < before ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
