// The graphs that one training or evaluation run needs, once each whatever the model's depth.
#pragma once

#include <string>
#include <vector>

#include "backend/placement_groups.h"
#include "compile/plan.h"
#include "model/model.h"
#include "transform/passes.h"
#include "transform/vjp.h"

namespace npu {

struct GraphOptions {
  LayerOptions layer;
  Recompute recompute = Recompute::kNone;
  int64_t loss_rows = 128;      // R: rows with loss that go through the head at a time
  int64_t vocab_chunk = 16384;  // largest C
  bool train = true;            // forward-and-backward graphs
  bool eval = false;            // forward-only graphs
  PassOptions passes;           // which passes are off
};

// Names of the graphs. The first layer's backward leaves out dx where nothing below it is trained.
inline constexpr std::string_view kLayerForward = "layer_fwd", kLayerBackward = "layer_bwd",
                                  kFirstLayerBackward = "layer_bwd_first",
                                  kLayerEval = "layer_eval", kFinalNorm = "final_norm",
                                  kFinalNormBackward = "final_norm_bwd", kCeGrad = "ce_grad",
                                  kCeStats = "ce_stats";

struct ModelGraphs {
  GraphOptions options;
  std::vector<NamedGraph> graphs;  // with their placement groups
  std::vector<std::string> saved;  // outputs of layer_fwd that layer_bwd takes
  std::vector<TensorType> saved_types;
  std::vector<int64_t> chunks;  // vocabulary chunks, in order

  const Graph& graph(std::string_view name) const;
  // Graph of the head for chunk i: "ce_grad", or "ce_grad_tail" for a smaller last chunk.
  std::string head_graph(std::string_view base, size_t chunk) const;
  int64_t saved_bytes_per_layer() const;
  // How often a micro-batch of a model with `layers` layers runs a graph; graphs for evaluation do
  // not count unless there are no others.
  int64_t calls_per_step(std::string_view name, int64_t layers) const;
};

ModelGraphs build_model_graphs(const ModelConfig& config, const GraphOptions& options);

}  // namespace npu
