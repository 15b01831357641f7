// The graphs that one training or evaluation run needs, once each whatever the model's depth.
#include "train/model_graphs.h"

#include <utility>

namespace npu {
namespace {

Graph renamed(const Graph& graph, std::string_view name) {
  Builder builder{std::string(name)};
  std::vector<Value> mapped(graph.nodes().size());
  for (const NodeId id : graph.inputs()) import_node(builder, graph, id, mapped);
  for (const GraphOutput& output : graph.outputs()) {
    builder.output(output.name, import_node(builder, graph, output.node, mapped));
  }
  return std::move(builder).build();
}

ForwardBackward differentiate(const Graph& forward, const std::string& seed,
                              const std::vector<std::string>& wrt, Recompute recompute,
                              const PassOptions& passes) {
  // The passes run before the split: afterwards forward's and backward's halves of a pattern
  // (softmax and its gradient) no longer stand in one graph, and the wrong tensors would be kept.
  const Graph joint = run_passes(vjp(forward, {seed}, wrt).take(), default_passes(), passes);
  return split_joint(joint, forward.outputs().size(), recompute);
}

void add_training_graphs(ModelGraphs& out, const ModelConfig& config) {
  const GraphOptions& o = out.options;
  const Graph layer = layer_forward(config, o.layer);
  std::vector<std::string> wrt = trained_inputs(o.layer.lora);
  wrt.insert(wrt.begin(), "x");
  ForwardBackward pair = differentiate(layer, "y", wrt, o.recompute, o.passes);
  out.saved = pair.saved;
  for (const std::string& name : pair.saved) {
    out.saved_types.push_back(pair.forward.node(pair.forward.find_output(name)).type);
  }
  // The first layer's backward must take the same saved tensors, so it is the full one without dx.
  Builder first{std::string(kFirstLayerBackward)};
  std::vector<Value> mapped(pair.backward.nodes().size());
  for (const GraphOutput& output : pair.backward.outputs()) {
    if (output.name == "d_x") continue;
    first.output(output.name, import_node(first, pair.backward, output.node, mapped));
  }
  out.graphs.push_back({"fwd", renamed(pair.forward, kLayerForward)});
  out.graphs.push_back({"bwd", renamed(pair.backward, kLayerBackward)});
  out.graphs.push_back({"bwd", std::move(first).build(/*drop_unused_inputs=*/true)});

  const Graph norm = final_norm(config, o.layer, o.loss_rows);
  const Graph norm_bwd = differentiate(norm, "h", {"x"}, Recompute::kLayer, o.passes).backward;
  out.graphs.push_back({"rms-bwd", renamed(norm_bwd, kFinalNormBackward)});
}

}  // namespace

ModelGraphs build_model_graphs(const ModelConfig& config, const GraphOptions& options) {
  ModelGraphs out;
  out.options = options;
  out.chunks = vocabulary_chunks(config.vocab_size, options.vocab_chunk);
  if (options.train) add_training_graphs(out, config);
  if (options.eval) {
    out.graphs.push_back({"fwd", renamed(layer_forward(config, options.layer), kLayerEval)});
  }
  out.graphs.push_back(
      {"rms", renamed(final_norm(config, options.layer, options.loss_rows), kFinalNorm)});
  for (size_t i = 0; i < out.chunks.size(); ++i) {
    if (i > 0 && out.chunks[i] == out.chunks[i - 1]) continue;
    const auto add = [&](std::string_view group, std::string_view base, const Graph& graph) {
      out.graphs.push_back({std::string(group), renamed(graph, out.head_graph(base, i))});
    };
    if (options.train) {
      add("ce-grad", kCeGrad, ce_grad(config, options.layer, options.loss_rows, out.chunks[i]));
    }
    if (options.eval) {
      add("ce-stats", kCeStats, ce_stats(config, options.layer, options.loss_rows, out.chunks[i]));
    }
  }
  return out;
}

const Graph& ModelGraphs::graph(std::string_view name) const {
  for (const NamedGraph& g : graphs) {
    if (g.graph.name() == name) return g.graph;
  }
  NPU_CHECK(false, "no graph " + std::string(name));
  return graphs.front().graph;
}

std::string ModelGraphs::head_graph(std::string_view base, size_t chunk) const {
  return std::string(base) + (chunks[chunk] == chunks[0] ? "" : "_tail");
}

int64_t ModelGraphs::calls_per_step(std::string_view name, int64_t layers) const {
  if (name == kLayerForward) return layers;
  if (name == kLayerBackward) return layers - 1;
  if (name == kLayerEval) return options.train ? 0 : layers;
  const bool scores = name.starts_with(kCeStats);
  if (!scores && !name.starts_with(kCeGrad)) return 1;
  if (scores && options.train) return 0;
  int64_t calls = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (head_graph(scores ? kCeStats : kCeGrad, i) == name) ++calls;
  }
  return calls;
}

int64_t ModelGraphs::saved_bytes_per_layer() const {
  int64_t bytes = 0;
  for (const TensorType& type : saved_types) bytes += type.bytes();
  return bytes;
}

}  // namespace npu
