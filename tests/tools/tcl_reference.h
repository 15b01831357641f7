// What TCL written from a graph must compute: the rows' kernels, with the operands of products
// rounded as RNGD does, and a node's values in the order in which the text stores them.
#pragma once

#include <map>
#include <vector>

#include "backend/tcl_layout.h"
#include "backend_cases.h"

namespace npu {

inline Tensor bf16_values(const Tensor& tensor) {
  return tensor.dtype() == DType::kF32 ? tensor.to(DType::kBF16).to(DType::kF32) : tensor;
}

inline std::vector<Tensor> reference_values(const Graph& graph, const Inputs& inputs) {
  std::vector<Tensor> values;
  for (const Node& node : graph.nodes()) {
    if (node.is_input()) {
      values.push_back(inputs.at(node.name));
      continue;
    }
    std::vector<Tensor> operands;
    for (const NodeId in : node.inputs) {
      const Tensor& v = values[static_cast<size_t>(in)];
      operands.push_back(node.op->traits.contraction ? bf16_values(v) : v);
    }
    Tensor out(node.type.dtype, node.type.shape);
    node.op->kernel(operands, node.attrs, out);
    values.push_back(std::move(out));
  }
  return values;
}

// The values of `from` (a node's dimensions as atoms) in the order in which they are stored.
inline std::vector<float> in_order(const Tensor& tensor, const tcl::Atoms& from,
                                   const tcl::Atoms& to, const tcl::AxisTable& table) {
  std::map<int, int64_t> stride;
  int64_t step = 1;
  for (size_t i = from.size(); i-- > 0;) {
    stride[from[i]] = step;
    step *= table.size(from[i]);
  }
  std::vector<float> out;
  std::vector<int64_t> index(to.size(), 0);
  for (int64_t n = 0; n < tensor.size(); ++n) {
    int64_t at = 0;
    for (size_t d = 0; d < to.size(); ++d) at += index[d] * stride.at(to[d]);
    out.push_back(static_cast<float>(element(tensor, at)));
    for (size_t d = to.size(); d-- > 0;) {
      if (++index[d] < table.size(to[d])) break;
      index[d] = 0;
    }
  }
  return out;
}

}  // namespace npu
