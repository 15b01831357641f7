// Writes every graph of a geometry as graph text and as TCL, whole (PRODUCTS 0) or in parts of so
// many products: what the vendor's estimator is shown.
//   tcl_texts CONFIG.json TARGETS BATCH SEQ_LEN DTYPE NUMERICS PRODUCTS DIRECTORY
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "backend/tcl_writer.h"
#include "base/file.h"
#include "io/hf_model.h"
#include "io/json.h"
#include "ir/text.h"
#include "tools/tcl_parts.h"
#include "train/model_graphs.h"

namespace npu {
namespace {

int run(const std::vector<std::string>& args) {
  const ModelConfig config = parse_model_config(read_json_file(args[0]), args[0]);
  GraphOptions options;
  options.layer.lora.targets = parse_targets(args[1]);
  options.layer.batch = std::stoll(args[2]);
  options.layer.seq_len = std::stoll(args[3]);
  options.layer.activation_dtype = options.layer.weight_dtype = parse_dtype(args[4]).value();
  options.layer.numerics = parse_numerics(args[5]).value();
  options.loss_rows = options.layer.batch * options.layer.seq_len;
  options.layer.arithmetic_head = options.few_graphs = true;
  options.eval = true;
  const std::filesystem::path directory = args[7];
  std::filesystem::create_directories(directory);
  int refused = 0;
  for (const NamedGraph& named : build_model_graphs(config, options).graphs) {
    const Graph graph = run_passes(named.graph, default_passes());
    publish_text(directory / (graph.name() + ".ir"), print_graph(graph));
    std::vector<Graph> parts;
    for (const Graph& part : supported_parts(graph)) {
      const PartLabels labels = partition(part, {.contractions = std::stoll(args[6])}).take();
      for (Part& piece : split(part, labels)) parts.push_back(std::move(piece.graph));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      const Result<TclFunction> function = write_tcl(canonicalize(parts[i]).graph);
      const std::string name = graph.name() + (i == 0 ? "" : "-" + std::to_string(i));
      if (function.ok()) {
        publish_text(directory / (name + ".tc"), function.value().text);
      } else {
        std::cout << name << ": " << function.error().text() << "\n";
        ++refused;
      }
    }
  }
  return refused == 0 ? 0 : 1;
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  if (argc != 9) {
    std::cerr
        << "usage: tcl_texts CONFIG.json TARGETS BATCH SEQ_LEN DTYPE NUMERICS PRODUCTS DIRECTORY\n";
    return 2;
  }
  return npu::run({argv + 1, argv + argc});
}
