// The graphs that one training or evaluation run needs, once each whatever the model's depth, and
// again for every sequence length.
#pragma once

#include <string>
#include <vector>

#include "backend/placement_groups.h"
#include "compile/plan.h"
#include "model/model.h"
#include "transform/passes.h"
#include "transform/vjp.h"

namespace npu {

// One sequence length, and R: the rows with loss that go through the head at a time.
struct LengthBucket {
  int64_t seq_len = 0, loss_rows = 0;
};

struct GraphOptions {
  LayerOptions layer;  // seq_len: of the longest bucket
  Recompute recompute = Recompute::kNone;
  int64_t loss_rows = 128;            // of the longest bucket
  std::vector<LengthBucket> shorter;  // further buckets
  int64_t vocab_chunk = 16384;        // largest C
  bool train = true;                  // forward-and-backward graphs
  bool eval = false;                  // forward-only graphs
  PassOptions passes;                 // which passes are off
  // For compilers that take long: every layer and evaluation run the same layer graphs, though
  // nothing reads some of their results.
  bool few_graphs = false;
};

// Names of the graphs. The first layer's backward leaves out dx where nothing below it is trained.
inline constexpr std::string_view kLayerForward = "layer_fwd", kLayerBackward = "layer_bwd",
                                  kFirstLayerBackward = "layer_bwd_first",
                                  kLayerEval = "layer_eval", kFinalNorm = "final_norm",
                                  kFinalNormBackward = "final_norm_bwd", kCeGrad = "ce_grad",
                                  kCeStats = "ce_stats";

// What is a bucket's own. The longest has the plain names; "layer_fwd@128" is of the one of 128.
struct BucketGraphs {
  int64_t seq_len = 0, loss_rows = 0;
  std::string suffix;              // "" or "@128"
  std::vector<std::string> saved;  // outputs of layer_fwd that layer_bwd takes
  std::vector<TensorType> saved_types;

  std::string name(std::string_view graph) const { return std::string(graph) + suffix; }
  int64_t saved_bytes_per_layer() const;
};
// The name without its bucket.
std::string_view plain_name(std::string_view graph);

struct ModelGraphs {
  GraphOptions options;
  std::vector<NamedGraph> graphs;     // with their placement groups
  std::vector<BucketGraphs> buckets;  // the longest first
  std::vector<int64_t> chunks;        // vocabulary chunks, in order

  const Graph& graph(std::string_view name) const;
  const BucketGraphs& longest() const { return buckets.front(); }
  // There is neither layer_bwd_first nor layer_eval: layer_bwd and layer_fwd do their work.
  bool shares_layers() const { return options.train && options.few_graphs; }
  // Graph of the head for chunk i: "ce_grad", or "ce_grad_tail" for a smaller last chunk.
  std::string head_graph(std::string_view base, size_t chunk) const;
  // How often a micro-batch of the graph's bucket runs it in a model with `layers` layers; graphs
  // for evaluation do not count unless there are no others.
  int64_t calls_per_step(std::string_view graph_name, int64_t layers) const;
};

ModelGraphs build_model_graphs(const ModelConfig& config, const GraphOptions& options);

}  // namespace npu
