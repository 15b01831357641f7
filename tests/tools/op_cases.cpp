// op_cases DIRECTORY: writes every row sample as CASE.ir, CASE.onnx, CASE.xml and CASE.bin, its
// inputs and the kernels' outputs as raw bytes, and manifest.json, which says what each file is.
// Other programs (tests/interop/test_onnx_rows.py) then run the graphs and compare.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "backend/graph_writers.h"
#include "backend_cases.h"
#include "base/file.h"
#include "ir/text.h"
#include "ops/table.h"

namespace npu {
namespace {

nlohmann::json write_tensor(const fs::path& directory, const std::string& file,
                            const std::string& name, const Tensor& tensor) {
  publish_file(directory / file, {tensor.data(), tensor.bytes()});
  return {{"name", name},
          {"dtype", dtype_name(tensor.dtype())},
          {"shape", tensor.shape()},
          {"file", file}};
}

nlohmann::json write_case(const fs::path& directory, const BackendCase& test_case) {
  const Graph& graph = test_case.graph;
  std::string weights;
  publish_text(directory / (test_case.name + ".xml"), write_openvino_ir(graph, &weights));
  publish_text(directory / (test_case.name + ".bin"), weights);
  publish_text(directory / (test_case.name + ".onnx"), write_onnx(graph));
  publish_text(directory / (test_case.name + ".ir"), print_graph(graph));
  nlohmann::json entry = {{"name", test_case.name},
                          {"family", test_case.family},
                          {"inputs", nlohmann::json::array()},
                          {"outputs", nlohmann::json::array()}};
  const Inputs inputs = random_inputs(test_case, 1);
  for (const NodeId id : graph.inputs()) {
    const std::string& name = graph.node(id).name;
    const std::string file =
        test_case.name + ".in" + std::to_string(entry["inputs"].size()) + ".raw";
    entry["inputs"].push_back(write_tensor(directory, file, name, inputs.at(name)));
  }
  const std::vector<Tensor> outputs = interpret(graph, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string file = test_case.name + ".out" + std::to_string(i) + ".raw";
    entry["outputs"].push_back(write_tensor(directory, file, graph.outputs()[i].name, outputs[i]));
  }
  return entry;
}

int run(const fs::path& directory) {
  fs::create_directories(directory);
  nlohmann::json manifest = nlohmann::json::array();
  for (const auto& list : {row_cases(), layer_cases(), binding_cases()}) {
    for (const BackendCase& test_case : list) manifest.push_back(write_case(directory, test_case));
  }
  publish_text(directory / "manifest.json", manifest.dump(1));
  return 0;
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: op_cases DIRECTORY\n");
    return 2;
  }
  try {
    return npu::run(argv[1]);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
