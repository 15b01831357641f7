// What tests of rows share: making operands from a sample, and building a sample's graph.
#pragma once

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "ir/graph.h"

namespace npu {

inline std::string operand_name(size_t index) { return "x" + std::to_string(index); }

// Operands of a sample. The floats of all operands together are a shuffled, evenly spaced grid over
// [low, high], so that none are equal and rules with branches are tested away from their edges.
inline std::vector<Tensor> sample_operands(const OpSample& sample, uint64_t seed) {
  const RandomStream random(seed, "operands");
  uint64_t draw = 0;
  std::vector<double> grid;
  for (const TensorType& type : sample.inputs) {
    if (is_float(type.dtype))
      grid.resize(grid.size() + static_cast<size_t>(num_elements(type.shape)));
  }
  const double spacing = (sample.high - sample.low) / static_cast<double>(grid.size());
  for (size_t i = 0; i < grid.size(); ++i) {
    grid[i] = sample.low + (static_cast<double>(i) + 0.5) * spacing;
  }
  for (size_t i = grid.size(); i > 1; --i) std::swap(grid[i - 1], grid[random.bits(draw++) % i]);
  std::vector<Tensor> operands;
  size_t next = 0;
  for (const TensorType& type : sample.inputs) {
    Tensor tensor(type.dtype, type.shape);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      if (is_float(type.dtype)) {
        set_element(tensor, i, grid[next++]);
      } else if (type.dtype == DType::kPred) {
        set_element(tensor, i, static_cast<double>(random.bits(draw++) % 2));
      } else {
        const auto count = static_cast<uint64_t>(sample.high - sample.low) + 1;
        set_element(tensor, i, sample.low + static_cast<double>(random.bits(draw++) % count));
      }
    }
    operands.push_back(tensor);
  }
  return operands;
}

// y = op(x0, x1, …), and where the row has a derivative: its cotangent "c" as an input and "d0",
// "d1", … as outputs.
inline Graph sample_graph(const OpDef& op, const OpSample& sample, bool with_gradient) {
  Builder b("sample");
  std::vector<Value> inputs;
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    inputs.push_back(b.input(operand_name(i), sample.inputs[i]));
  }
  const Value y = b.apply(op, inputs, sample.attrs);
  b.output("y", y);
  if (with_gradient && op.vjp != nullptr && is_float(y.dtype())) {
    const Value cotangent = b.input("c", y.type());
    const Node node = b.node(y.id);
    const std::vector<Value> gradients = op.vjp({b, node, inputs, y, cotangent});
    NPU_CHECK(gradients.size() == inputs.size(), "one gradient per operand");
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].valid()) b.output("d" + std::to_string(i), gradients[i]);
    }
  }
  return std::move(b).build();
}

inline std::map<std::string, Tensor> bound(const std::vector<Tensor>& operands) {
  std::map<std::string, Tensor> inputs;
  for (size_t i = 0; i < operands.size(); ++i) inputs[operand_name(i)] = operands[i];
  return inputs;
}

// Uniform in [-1, 1].
inline Tensor random_tensor(const TensorType& type, uint64_t seed, std::string_view name) {
  const RandomStream random(seed, name);
  Tensor tensor(type.dtype, type.shape);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    set_element(tensor, i, 2 * random.uniform(static_cast<uint64_t>(i)) - 1);
  }
  return tensor;
}

inline bool same_bytes(const Tensor& a, const Tensor& b) {
  const auto bytes = [](const Tensor& t) {
    return std::string_view(reinterpret_cast<const char*>(t.data()), t.bytes());
  };
  return a.dtype() == b.dtype() && a.shape() == b.shape() && bytes(a) == bytes(b);
}

}  // namespace npu
