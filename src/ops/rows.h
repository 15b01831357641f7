// The families of rows that table.cpp puts together, and what their rules share.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "ir/graph.h"
#include "ops/ops.h"

namespace npu::ops {

std::span<const OpDef* const> elementwise_rows();
std::span<const OpDef* const> logic_rows();  // convert, compare, select, stop_gradient
std::span<const OpDef* const> matmul_rows();
std::span<const OpDef* const> reduce_rows();
std::span<const OpDef* const> movement_rows();
std::span<const OpDef* const> index_rows();

// ---- shape rules -------------------------------------------------------------------------------
inline Error broken(std::string what) {
  Error error;
  error.what = std::move(what);
  return error;
}

// The dtype that the attribute "dtype" names.
Result<DType> named_dtype(const Attrs& attrs);
// The shape that operands of equal rank repeat to, or the rule that they break.
Result<Shape> broadcast_shape(std::span<const TensorType> inputs);

// ---- derivatives -------------------------------------------------------------------------------
// Sums `x` over the dimensions in which `shape` has size 1: the transpose of broadcasting.
Value unbroadcast(Value x, const Shape& shape);

inline constexpr Value kNoGradient = {};

// ---- lowerings ---------------------------------------------------------------------------------
// The node as one node of the target format, on the same operands and with the same type.
GraphWriter::Ref lower_as(const LowerContext& context, std::string_view type,
                          const Attrs& attrs = {});
// The same with further operands after the node's own.
GraphWriter::Ref lower_with(const LowerContext& context, std::string_view type,
                            std::initializer_list<GraphWriter::Ref> further,
                            const Attrs& attrs = {});

// Element types as the formats name them.
int64_t onnx_dtype(DType dtype);          // TensorProto.DataType
std::string openvino_dtype(DType dtype);  // "f32", "boolean", …

// The attribute by which OpenVINO's elementwise operations repeat dimensions of size 1.
Attrs numpy_broadcast();

}  // namespace npu::ops
