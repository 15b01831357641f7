// Every graph of a training and evaluation run, in parts, as text.
#include "tools/tcl_geometry.h"

#include <nlohmann/json.hpp>

#include "backend/furiosa.h"
#include "backend/tcl_writer.h"
#include "base/hash.h"
#include "compile/plan.h"
#include "io/hf_model.h"
#include "io/json.h"

namespace npu {
namespace {

void add_parts(const std::string& use, const ModelGraphs& graphs, Backend& backend,
               std::map<std::string, GeometryText>& texts) {
  const BackendLimits& most = backend.traits().limits;
  PlanOptions options;
  options.limits = {most.contractions, most.nodes, most.inputs, most.outputs};
  const Plan plan = make_plan(graphs.graphs, backend, options);
  for (const PlannedGraph& graph : plan.graphs) {
    for (const PlannedPart& part : graph.parts) {
      NPU_CHECK(!part.on_host, use + " " + part.name + ": " + part.host_reason);
    }
  }
  for (const DistinctPart& part : plan.distinct) {
    const Result<TclFunction> function = write_tcl(part.graph);
    NPU_CHECK(function.ok(), use + " " + part.first_use + ": " + function.error().text());
    const std::string& text = function.value().text;
    texts.emplace(sha256_hex(text), GeometryText{use + " " + part.first_use, text});
  }
}

}  // namespace

void each_geometry(bool few_graphs,
                   const std::function<void(const std::string& use, const ModelGraphs&)>& visit) {
  for (const char* geometry : {"smollm2_135m", "llama_1b", "llama_8b"}) {
    const fs::path file = fs::path(NPU_SOURCE_DIR) / "tests/geometry" / geometry / "config.json";
    const ModelConfig config = parse_model_config(read_json_file(file), file.string());
    for (const char* targets : {"q,v", "all"}) {
      for (const int64_t seq_len : {128, 512}) {
        GraphOptions options;
        options.layer.seq_len = options.loss_rows = seq_len;
        options.layer.lora.targets = parse_targets(targets);
        options.layer.activation_dtype = options.layer.weight_dtype = DType::kBF16;
        options.layer.arithmetic_head = true;
        options.few_graphs = few_graphs;
        options.eval = true;
        visit(std::string(geometry) + " " + targets + " " + std::to_string(seq_len),
              build_model_graphs(config, options));
      }
    }
  }
}

std::map<std::string, GeometryText> geometry_texts() {
  std::map<std::string, GeometryText> texts;
  const auto backend = make_furiosa_entry();
  NPU_CHECK(backend->traits().arithmetic_head, "as each_geometry() builds it");
  each_geometry(backend->traits().dear_compiles,
                [&](const std::string& use, const ModelGraphs& graphs) {
                  add_parts(use, graphs, *backend, texts);
                });
  return texts;
}

}  // namespace npu
