// Stand-in for write_tcl until the real one is merged: one matmul x·wᵀ.
#include "backend/tcl_writer.h"

namespace npu {
Result<TclFunction> write_tcl(const Graph& part) {
  if (part.num_contractions() != 1 || part.inputs().size() != 2 || part.outputs().size() != 1) {
    return Error{ErrorKind::kBadInput, "tcl", "stand-in: one matmul only", "", ""};
  }
  TclFunction f;
  const Node &x = part.node(part.inputs()[0]), &w = part.node(part.inputs()[1]);
  const Node& y = part.node(part.outputs()[0].node);
  if (x.type.shape.size() != 2 || w.type.shape.size() != 2 || x.type.dtype != DType::kBF16) {
    return Error{ErrorKind::kBadInput, "tcl", "stand-in: one matmul only", "", ""};
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
