// Writes every graph of a geometry as graph text and as TCL: what the vendor's estimator is shown.
//   tcl_texts CONFIG.json TARGETS BATCH SEQ_LEN DTYPE NUMERICS DIRECTORY
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "backend/tcl_writer.h"
#include "base/file.h"
#include "io/hf_model.h"
#include "io/json.h"
#include "ir/text.h"
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
  options.eval = true;
  const std::filesystem::path directory = args[6];
  std::filesystem::create_directories(directory);
  int refused = 0;
  for (const NamedGraph& named : build_model_graphs(config, options).graphs) {
    const Graph graph = run_passes(named.graph, default_passes());
    publish_text(directory / (graph.name() + ".ir"), print_graph(graph));
    Result<TclFunction> function = write_tcl(graph);
    if (function.ok()) {
      publish_text(directory / (graph.name() + ".tc"), function.value().text);
    } else {
      std::cout << graph.name() << ": " << function.error().text() << "\n";
      ++refused;
    }
  }
  return refused == 0 ? 0 : 1;
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  if (argc != 8) {
    std::cerr << "usage: tcl_texts CONFIG.json TARGETS BATCH SEQ_LEN DTYPE NUMERICS DIRECTORY\n";
    return 2;
  }
  return npu::run({argv + 1, argv + argc});
}
