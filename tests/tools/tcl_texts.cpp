// Writes every graph of a geometry as NAME.ir, and whole (PRODUCTS 0) or in parts of so many
// products as NAME.part, graph text, and NAME.tc, the same as TCL. hint.yaml keeps a search quick.
//   tcl_texts CONFIG.json TARGETS BATCH SEQ_LEN DTYPE NUMERICS PRODUCTS DIRECTORY [values]
// With "values" also NAME.safetensors: what each name of the text stands for, by the reference, for
// random inputs.
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "backend/furiosa_options.h"
#include "backend/tcl_writer.h"
#include "base/file.h"
#include "io/hf_model.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "ir/text.h"
#include "tools/tcl_parts.h"
#include "tools/tcl_reference.h"
#include "train/model_graphs.h"

namespace npu {
namespace {

// Every tensor of the text by its name there, flat, of the type that it has in the text.
std::map<std::string, Tensor> named_values(const Graph& graph) {
  const tcl::Axes axes = tcl::name_axes(graph).take();
  const std::vector<tcl::Item> items = tcl::form_blocks(graph, axes).take();
  const tcl::FunctionLayout layout = tcl::lay_out(graph, axes, items).take();
  const Inputs inputs = random_inputs({graph.name(), "", graph, -0.7, 0.7, 0, 6}, 3);
  const std::vector<Tensor> values = reference_values(graph, inputs);
  std::map<std::string, Tensor> named;
  for (const tcl::StoredTensor& stored : layout.tensors) {
    if (stored.name[0] == 's')
      continue;  // in the middle of a slice of several axes: no node has it
    const std::vector<float> ordered =
        in_order(values[static_cast<size_t>(stored.node)], axes.atoms_of(stored.node), stored.order,
                 axes.table);
    Tensor tensor(stored.dtype, {static_cast<int64_t>(ordered.size())});
    for (size_t i = 0; i < ordered.size(); ++i) {
      set_element(tensor, static_cast<int64_t>(i), ordered[i]);
    }
    named.emplace(stored.name, std::move(tensor));
  }
  return named;
}

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
  publish_text(directory / "hint.yaml", furiosa_tcc_job({}).take().hint);
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
      const Graph canonical = canonicalize(parts[i]).graph;
      const Result<TclFunction> function = write_tcl(canonical);
      const std::string name = graph.name() + (i == 0 ? "" : "-" + std::to_string(i));
      publish_text(directory / (name + ".part"), print_graph(canonical));
      if (function.ok()) {
        publish_text(directory / (name + ".tc"), function.value().text);
        if (args.size() > 8) {
          write_safetensors(directory / (name + ".safetensors"), named_values(canonical));
        }
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
  const bool values = argc == 10 && std::string(argv[9]) == "values";
  if (argc != 9 && !values) {
    std::cerr << "usage: tcl_texts CONFIG.json TARGETS BATCH SEQ_LEN DTYPE NUMERICS PRODUCTS "
                 "DIRECTORY [values]\n";
    return 2;
  }
  return npu::run({argv + 1, argv + argc});
}
