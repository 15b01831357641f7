// TCL as a graph again computes what the interpreter computes of the same text: every part of a
// small model, as stand-ins for RNGD cards run them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "backend/backend.h"
#include "io/hf_model.h"
#include "io/json.h"
#include "tools/tcl_graph.h"
#include "tools/tcl_interpreter.h"
#include "tools/tcl_parts.h"
#include "train/model_graphs.h"

namespace npu {
namespace {

// Sums are taken in another order; what a block writes in bf16 may then be the neighbour, and what
// is computed from that differs by as much.
constexpr double kBound = 1.0 / 128;

std::vector<Tensor> computed(const Graph& graph, const std::vector<Tensor>& inputs) {
  const auto backend = make_backend("cpu").take();
  const auto device = backend->open({.threads = 1}).take();
  const auto executable = device->load(backend->compile(graph, {}).take(), graph).take();
  std::vector<std::shared_ptr<Buffer>> buffers;
  std::vector<Buffer*> in, out;
  for (const Tensor& input : inputs) {
    in.push_back(buffers.emplace_back(device->adopt(input).take()).get());
  }
  std::vector<Tensor> outputs;
  for (const GraphOutput& output : graph.outputs()) {
    const TensorType& type = graph.node(output.node).type;
    const Tensor& tensor = outputs.emplace_back(type.dtype, type.shape);
    out.push_back(buffers.emplace_back(device->allocate(tensor.bytes()).take()).get());
  }
  EXPECT_FALSE(device->wait(device->submit(*executable, in, out).take()).has_value());
  for (size_t i = 0; i < outputs.size(); ++i) {
    device->download({outputs[i].mutable_data(), outputs[i].bytes()}, *out[i]);
  }
  return outputs;
}

TEST(TclGraph, ComputesWhatTheInterpreterDoes) {
  const std::string folder = NPU_SOURCE_DIR "/tests/golden/llama_tiny/config.json";
  const ModelConfig config = parse_model_config(read_json_file(folder), folder);
  GraphOptions options;
  options.layer.lora.targets = parse_targets("all");
  options.layer.seq_len = 16;
  options.layer.activation_dtype = options.layer.weight_dtype = DType::kBF16;
  options.loss_rows = 16;
  size_t compared = 0;
  for (const NamedGraph& named : build_model_graphs(config, options).graphs) {
    for (const Graph& part : supported_parts(run_passes(named.graph, default_passes()))) {
      const Graph canonical = canonicalize(part).graph;
      const TclFunction function = write_tcl(canonical).take();
      const Result<Graph> graph = tcl_graph(function.text);
      ASSERT_TRUE(graph.ok()) << graph.error().text();
      std::vector<Tensor> operands;
      for (const NodeId id : graph.value().inputs()) {
        const Node& node = graph.value().node(id);
        Tensor tensor(node.type.dtype, node.type.shape);
        for (int64_t i = 0; i < tensor.size(); ++i) {
          set_element(tensor, i, 0.25 + static_cast<double>((i * 37 + id * 11) % 101) / 101);
        }
        operands.push_back(std::move(tensor));
      }
      const std::vector<TclTensor> wanted = run_tcl(function.text, operands).take();
      const std::vector<Tensor> got = computed(graph.value(), operands);
      ASSERT_EQ(got.size(), wanted.size());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].dtype(), wanted[i].dtype);
        const Tensor values = Tensor::from_f32(got[i].shape(), wanted[i].values);
        const Difference error = difference(got[i].to(DType::kF32), values);
        EXPECT_TRUE(error.finite && error.rel_l2 <= kBound)
            << named.graph.name() << " output " << i << ": " << error.rel_l2 << "\n"
            << function.text;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 40u);
}

TEST(TclGraph, NamesTheLineThatItDoesNotUnderstand) {
  const Result<Graph> graph = tcl_graph(
      "#tactic_kernel_dsl\ndef part(\n  a: [A]/f32,\n) -> [A]/f32:\n  assert A == 4\n"
      "  t: [A]/f32 = tk.EinsumByVe(\n    %0 = read(a)\n    %1 = ve.exec(tanh %0)\n"
      "    write.to([A]/f32)\n  )\n  return t\n");
  ASSERT_FALSE(graph.ok());
  EXPECT_NE(graph.error().text().find("tanh"), std::string::npos) << graph.error().text();
}

}  // namespace
}  // namespace npu
