// Stand-in for write_tcl until the real one is merged: one matmul x·wᵀ.
#include "backend/tcl_writer.h"

namespace npu {
static TclFunction any_part(const Graph& part) {
  TclFunction f;
  std::string axes;
  int number = 0;
  const auto port = [&](const std::string& name, const TensorType& type) {
    std::string text = "[";
    int dim = 0;
    for (const int64_t size : type.shape) {
      const std::string axis = "A" + std::to_string(number) + "x" + std::to_string(dim++);
      text += (text == "[" ? "" : ", ") + axis;
      axes += "    assert " + axis + " == " + std::to_string(size) + "\n";
    }
    ++number;
    (void)name;
    return text + "]/" + std::string(dtype_name(type.dtype));
  };
  std::string ins, outs;
  for (const NodeId id : part.inputs()) {
    const Node& node = part.node(id);
    ins += (ins.empty() ? "    " : ",\n    ") + node.name + ": " + port(node.name, node.type);
    f.inputs.push_back({node.name, node.type});
  }
  for (const GraphOutput& output : part.outputs()) {
    const TensorType& type = part.node(output.node).type;
    outs += (outs.empty() ? "" : ", ") + port(output.name, type);
    f.outputs.push_back({output.name, type});
  }
  f.text = "#standin\ndef part(\n" + ins + "\n) -> " + outs + ":\n" + axes +
           "    y: nothing = tk.None(\n    )\n";
  return f;
}
Result<TclFunction> write_tcl(const Graph& part) {
  if (part.num_contractions() != 1 || part.inputs().size() != 2 || part.outputs().size() != 1) {
    return any_part(part);
  }
  TclFunction f;
  const Node &x = part.node(part.inputs()[0]), &w = part.node(part.inputs()[1]);
  const Node& y = part.node(part.outputs()[0].node);
  if (x.type.shape.size() != 2 || w.type.shape.size() != 2 || x.type.dtype != DType::kBF16) {
    return any_part(part);
  }
  const bool transposed = w.type.shape[1] == x.type.shape[1];
  f.inputs = {{x.name, x.type}, {w.name, w.type}};
  f.outputs = {{part.outputs()[0].name, y.type}};
  f.text = std::string("#tactic_kernel_dsl\ndef part(\n    x: [M, K]/bf16,\n    w: ") +
           (transposed ? "[N, K]" : "[K, N]") +
           "/bf16\n) -> [M, N]/bf16:\n    assert M == " + std::to_string(y.type.shape[0]) +
           "\n    assert N == " + std::to_string(y.type.shape[1]) +
           "\n    assert K == " + std::to_string(x.type.shape[1]) +
           "\n    y: [M, N]/bf16 = tk.EinsumByDpe(\n        %0 = read(x)\n        %1 = read(w)\n"
           "        %2 = dpe.exec(%0,%1 -> [M, N])\n        write.to([M, N]/bf16)\n    )\n"
           "    return y\n";
  f.blocks = f.contractions = 1;
  return f;
}
std::optional<std::string> tcl_unsupported(const Graph&, NodeId) { return std::nullopt; }
}  // namespace npu
