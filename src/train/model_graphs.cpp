// The graphs that one training or evaluation run needs.
#include "train/model_graphs.h"

#include <algorithm>
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

// One bucket's part of the list.
class BucketBuilder {
 public:
  BucketBuilder(ModelGraphs& out, const ModelConfig& config, const LengthBucket& bucket)
      : out_(out), config_(config), layer_(out.options.layer), bucket_(out.buckets.emplace_back()) {
    layer_.seq_len = bucket_.seq_len = bucket.seq_len;
    bucket_.loss_rows = bucket.loss_rows;
    if (bucket.seq_len != out.options.layer.seq_len) {
      bucket_.suffix = "@" + std::to_string(bucket.seq_len);
    }
  }

  void add_all() {
    const GraphOptions& o = out_.options;
    if (o.train) add_training();
    if (o.eval && !out_.shares_layers()) add("fwd", kLayerEval, layer_forward(config_, layer_));
    add("rms", kFinalNorm, final_norm(config_, layer_, bucket_.loss_rows));
    for (size_t i = 0; i < out_.chunks.size(); ++i) {
      const int64_t chunk = out_.chunks[i];
      if (i > 0 && chunk == out_.chunks[i - 1]) continue;
      if (o.train) {
        add("ce-grad", out_.head_graph(kCeGrad, i),
            ce_grad(config_, layer_, bucket_.loss_rows, chunk));
      }
      if (o.eval) {
        add("ce-stats", out_.head_graph(kCeStats, i),
            ce_stats(config_, layer_, bucket_.loss_rows, chunk));
      }
    }
  }

 private:
  void add(std::string_view group, std::string_view name, const Graph& graph) {
    out_.graphs.push_back({std::string(group), renamed(graph, bucket_.name(name))});
  }

  void add_training() {
    const GraphOptions& o = out_.options;
    const Graph layer = layer_forward(config_, layer_);
    std::vector<std::string> wrt = trained_inputs(layer_.lora);
    wrt.insert(wrt.begin(), "x");
    ForwardBackward pair = differentiate(layer, "y", wrt, o.recompute, o.passes);
    bucket_.saved = pair.saved;
    for (const std::string& name : pair.saved) {
      bucket_.saved_types.push_back(pair.forward.node(pair.forward.find_output(name)).type);
    }
    add("fwd", kLayerForward, pair.forward);
    add("bwd", kLayerBackward, pair.backward);
    if (!out_.shares_layers()) add_first_backward(pair.backward);

    const Graph norm = final_norm(config_, layer_, bucket_.loss_rows);
    add("rms-bwd", kFinalNormBackward,
        differentiate(norm, "h", {"x"}, Recompute::kLayer, o.passes).backward);
  }

  // The first layer's backward must take the same saved tensors, so it is the full one without dx.
  void add_first_backward(const Graph& backward) {
    Builder first{bucket_.name(kFirstLayerBackward)};
    std::vector<Value> mapped(backward.nodes().size());
    for (const GraphOutput& output : backward.outputs()) {
      if (output.name == "d_x") continue;
      first.output(output.name, import_node(first, backward, output.node, mapped));
    }
    out_.graphs.push_back({"bwd", std::move(first).build(/*drop_unused_inputs=*/true)});
  }

  ModelGraphs& out_;
  const ModelConfig& config_;
  LayerOptions layer_;
  BucketGraphs& bucket_;
};

}  // namespace

ModelGraphs build_model_graphs(const ModelConfig& config, const GraphOptions& options) {
  ModelGraphs out;
  out.options = options;
  out.chunks =
      vocabulary_chunks(config.vocab_size, options.vocab_chunk, options.layer.arithmetic_head);
  std::vector<LengthBucket> buckets = options.shorter;
  buckets.push_back({options.layer.seq_len, options.loss_rows});
  std::sort(buckets.begin(), buckets.end(),
            [](const auto& a, const auto& b) { return a.seq_len > b.seq_len; });
  NPU_CHECK(buckets.front().seq_len == options.layer.seq_len, "a bucket above the longest");
  out.buckets.reserve(buckets.size());
  for (const LengthBucket& bucket : buckets) BucketBuilder(out, config, bucket).add_all();
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

std::string_view plain_name(std::string_view graph) { return graph.substr(0, graph.find('@')); }

int64_t ModelGraphs::calls_per_step(std::string_view graph_name, int64_t layers) const {
  const std::string_view name = plain_name(graph_name);
  if (name == kLayerForward) return layers;
  if (name == kLayerBackward) return shares_layers() ? layers : layers - 1;
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

int64_t BucketGraphs::saved_bytes_per_layer() const {
  int64_t bytes = 0;
  for (const TensorType& type : saved_types) bytes += type.bytes();
  return bytes;
}

}  // namespace npu
