// What the rules of several families share.
#include "ops/rows.h"

#include <vector>

namespace npu::ops {

Result<DType> named_dtype(const Attrs& attrs) {
  const std::string& name = attrs.string("dtype");
  const auto dtype = parse_dtype(name);
  if (!dtype) return broken("there is no dtype \"" + name + "\"");
  return *dtype;
}

Result<Shape> broadcast_shape(std::span<const TensorType> inputs) {
  Shape shape = inputs[0].shape;
  for (const TensorType& input : inputs.subspan(1)) {
    if (input.shape.size() != shape.size()) return broken("operands have equal rank");
    for (size_t d = 0; d < shape.size(); ++d) {
      if (input.shape[d] == shape[d] || input.shape[d] == 1) continue;
      if (shape[d] != 1) return broken("dimensions are equal or 1");
      shape[d] = input.shape[d];
    }
  }
  return shape;
}

Value unbroadcast(Value x, const Shape& shape) {
  std::vector<int64_t> axes;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1 && x.shape()[d] != 1) axes.push_back(static_cast<int64_t>(d));
  }
  return axes.empty() ? x : reduce_sum(x, axes);
}

GraphWriter::Ref lower_as(const LowerContext& context, std::string_view type, const Attrs& attrs) {
  return context.writer.node(type, context.inputs, attrs, context.node.type);
}

GraphWriter::Ref lower_with(const LowerContext& context, std::string_view type,
                            std::initializer_list<GraphWriter::Ref> further, const Attrs& attrs) {
  std::vector<GraphWriter::Ref> inputs(context.inputs.begin(), context.inputs.end());
  inputs.insert(inputs.end(), further);
  return context.writer.node(type, inputs, attrs, context.node.type);
}

int64_t onnx_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 1;
    case DType::kU8:
      return 2;
    case DType::kI32:
      return 6;
    case DType::kI64:
      return 7;
    case DType::kPred:
      return 9;
    case DType::kF16:
      return 10;
    case DType::kBF16:
      return 16;
  }
  NPU_CHECK(false, "a known dtype");
  return 0;
}

std::string openvino_dtype(DType dtype) {
  return dtype == DType::kPred ? "boolean" : std::string(dtype_name(dtype));
}

Attrs numpy_broadcast() { return {{"auto_broadcast", std::string("numpy")}}; }

}  // namespace npu::ops
