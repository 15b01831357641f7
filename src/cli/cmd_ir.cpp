// npu-lora ir: the shell's way to graphs. Reads text (or takes a graph of a model), runs named
// passes, prints text, OpenVINO IR or ONNX.
#include <iostream>
#include <iterator>

#include "backend/graph_writers.h"
#include "cli/commands.h"
#include "ir/text.h"
#include "ops/table.h"
#include "transform/legalise.h"
#include "transform/passes.h"

namespace npu {
namespace {

Graph read_graph(const Options& options) {
  if (options.positional().size() != 1) {
    fail(ErrorKind::kUsage, "npu-lora ir", "needs one file, or - for standard input",
         std::to_string(options.positional().size()), "or --model M --graph layer_fwd");
  }
  const std::string file = options.positional().front();
  const std::string text =
      file == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : read_text(file);
  return parse_graph(text, find_op, file).take();
}

Graph model_graph(const Options& options) {
  const ModelConfig config = open_model(options, /*with_weights=*/false).config;
  GraphOptions graph_options;
  graph_options.layer.seq_len = 128;
  graph_options.loss_rows = 128;
  graph_options.eval = true;
  graph_options.passes.disabled = disabled_passes(options);
  const ModelGraphs graphs = build_model_graphs(config, graph_options);
  const std::string name = options.text("graph");
  std::string known;
  for (const NamedGraph& g : graphs.graphs) {
    if (g.graph.name() == name) return g.graph;
    known += (known.empty() ? "" : ", ") + g.graph.name();
  }
  fail(ErrorKind::kUsage, "--graph", "no graph of this name", "'" + name + "'", "one of " + known);
}

std::vector<Pass> chosen_passes(const std::string& text) {
  if (text == "default") return {default_passes().begin(), default_passes().end()};
  std::vector<Pass> passes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    const Pass* pass = find_pass(name);
    if (pass == nullptr) {
      std::string known = "default";
      for (const std::span<const Pass> list : {default_passes(), legalise_passes()}) {
        for (const Pass& p : list) known += ", " + std::string(p.name);
      }
      fail(ErrorKind::kUsage, "--passes", "no pass of this name", "'" + name + "'",
           "known: " + known);
    }
    passes.push_back(*pass);
    begin = end + 1;
  }
  return passes;
}

}  // namespace

int cmd_ir(const Options& options) {
  if (options.has("graph") && !options.positional().empty()) {
    fail(ErrorKind::kUsage, "--graph", "can't be given beside a file", options.positional()[0]);
  }
  Graph graph = options.has("graph") ? model_graph(options) : read_graph(options);
  PassOptions pass_options;
  pass_options.disabled = disabled_passes(options);
  if (options.flag("print-after")) {
    pass_options.after = [](std::string_view pass, const Graph& g) {
      std::cout << "# after " << pass << "\n" << print_graph(g) << "\n";
    };
  }
  if (options.has("passes")) {
    graph = run_passes(graph, chosen_passes(options.text("passes")), pass_options);
  }
  const std::string format = options.choice("emit", {"text", "openvino", "onnx"});
  if (format == "text") std::cout << print_graph(graph);
  if (format == "onnx") std::cout << write_onnx(graph);
  if (format == "openvino") {
    std::string weights;
    std::cout << write_openvino_ir(graph, &weights) << "\n";
  }
  return 0;
}

}  // namespace npu
