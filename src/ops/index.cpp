// Rows about indices, and the rows without operands: gather one_hot iota constant.
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/kernel.h"
#include "ops/rows.h"

namespace npu::ops {
namespace {

using Operands = std::span<const Tensor>;
using Types = std::span<const TensorType>;
using Values = std::vector<Value>;

bool is_index_list(const TensorType& type) {
  return type.dtype == DType::kI32 && type.shape.size() == 1;
}

// The type that the attributes "dtype" and "shape" name.
Result<TensorType> type_of(const Attrs& attrs) {
  const Result<DType> dtype = named_dtype(attrs);
  if (!dtype.ok()) return dtype.error();
  TensorType type = {dtype.value(), attrs.integers("shape")};
  if (auto rule = broken_type_bound(type)) return broken(*rule);
  return type;
}

std::string name_of(DType dtype) { return std::string(dtype_name(dtype)); }

// `small`, repeated up to the node's type when it has fewer elements.
GraphWriter::Ref onnx_spread(const LowerContext& c, const Tensor& small) {
  const GraphWriter::Ref value = c.writer.constant(small);
  if (small.shape() == c.node.type.shape) return value;
  const GraphWriter::Ref operands[] = {value, c.writer.constant_i64(c.node.type.shape)};
  return c.writer.node("Expand", operands, {}, c.node.type);
}

GraphWriter::Ref openvino_spread(const LowerContext& c, const Tensor& small) {
  const GraphWriter::Ref value = c.writer.constant(small);
  if (small.shape() == c.node.type.shape) return value;
  const GraphWriter::Ref operands[] = {value, c.writer.constant_i64(c.node.type.shape)};
  return c.writer.node("opset3::Broadcast", operands, {{"mode", std::string("numpy")}},
                       c.node.type);
}

// ---- gather ------------------------------------------------------------------------------------

Result<TensorType> infer_gather(Types in, const Attrs&) {
  if (in[0].shape.size() != 2) return broken("the table has two dimensions");
  if (!is_index_list(in[1])) return broken("indices are i32 [N]");
  return TensorType{in[0].dtype, {in[1].shape[0], in[0].shape[1]}};
}

void gather_kernel(Operands in, const Attrs&, Tensor& out) {
  const int64_t rows = in[0].shape()[0];
  const size_t row_bytes = in[0].bytes() / static_cast<size_t>(rows);
  std::byte* write = out.mutable_data();
  for (const int32_t index : in[1].values<int32_t>()) {
    NPU_CHECK(index >= 0 && index < rows, "gather: index " + std::to_string(index) +
                                              " of a table of " + std::to_string(rows) + " rows");
    std::memcpy(write, in[0].data() + static_cast<size_t>(index) * row_bytes, row_bytes);
    write += row_bytes;
  }
}

Values vjp_gather(const VjpContext& c) {
  // Scatter-add as a product: row v of the gradient sums the rows of g whose index is v.
  const Value table = c.inputs[0], indices = c.inputs[1], g = c.cotangent;
  const Value picks_NV = one_hot(indices, table.shape()[0], g.dtype());
  return {matmul(picks_NV, g, {.transpose_lhs = true}), kNoGradient};
}

constexpr OpDef kGather = {
    .name = "gather",
    .arity = 2,
    .attrs = {},
    .traits = {.movement = true},
    .summary =
        "Rows of a table [V, H] chosen by i32 indices [N], each in [0, V). No gradient passes "
        "to the indices.",
    .infer = infer_gather,
    .kernel = gather_kernel,
    .vjp = vjp_gather,
    .no_grad_reason = "",
    .onnx =
        [](const LowerContext& c) {
          return lower_as(c, "Gather", {{"axis", int64_t{0}}});
        },
    .openvino =
        [](const LowerContext& c) {
          const int64_t axis = 0;
          return lower_with(c, "opset8::Gather", {c.writer.constant_i64({&axis, 1}, true)},
                            {{"batch_dims", int64_t{0}}});
        },
    .samples =
        [] {
          return std::vector<OpSample>{
              {.inputs = {{DType::kF32, {5, 3}}, {DType::kI32, {8}}}, .low = 0, .high = 4},
              {.inputs = {{DType::kF32, {4, 2}}, {DType::kI32, {1}}}, .low = 0, .high = 3},
              {.inputs = {{DType::kI32, {4, 2}}, {DType::kI32, {3}}}, .low = 0, .high = 3}};
        },
};

// ---- one_hot -----------------------------------------------------------------------------------

constexpr AttrSpec kOneHotAttrs[] = {{"depth", AttrKind::kInteger}, {"dtype", AttrKind::kString}};

Result<TensorType> infer_one_hot(Types in, const Attrs& attrs) {
  if (!is_index_list(in[0])) return broken("indices are i32 [N]");
  const Result<DType> dtype = named_dtype(attrs);
  if (!dtype.ok()) return dtype.error();
  const int64_t depth = attrs.integer("depth");
  if (depth < 1 || depth > INT32_MAX) return broken("depth is between 1 and 2^31 - 1");
  return TensorType{dtype.value(), {in[0].shape[0], depth}};
}

void one_hot_kernel(Operands in, const Attrs& attrs, Tensor& out) {
  const int64_t depth = attrs.integer("depth");
  std::memset(out.mutable_data(), 0, out.bytes());
  int64_t row = 0;
  for (const int32_t index : in[0].values<int32_t>()) {
    if (index >= 0 && index < depth) set_element(out, row * depth + index, 1.0);
    ++row;
  }
}

// The formats' own one-hot operations count negative indices from the end, so both lowerings
// compare the indices [N, 1] with the columns [1, depth].
struct OneHotOperands {
  Tensor columns;          // i32 [1, depth]
  TensorType column_type;  // of the indices as a column
  TensorType equal_type;   // of the comparison
};

OneHotOperands one_hot_operands(const LowerContext& c) {
  const Shape& shape = c.node.type.shape;
  Tensor columns(DType::kI32, {1, shape[1]});
  int32_t next = 0;
  for (int32_t& column : columns.mutable_values<int32_t>()) column = next++;
  return {columns, {DType::kI32, {shape[0], 1}}, {DType::kPred, shape}};
}

GraphWriter::Ref onnx_one_hot(const LowerContext& c) {
  const OneHotOperands o = one_hot_operands(c);
  GraphWriter& w = c.writer;
  const GraphWriter::Ref to_column[] = {c.inputs[0], w.constant_i64(o.column_type.shape)};
  const GraphWriter::Ref sides[] = {w.node("Reshape", to_column, {}, o.column_type),
                                    w.constant(o.columns)};
  const GraphWriter::Ref equal = w.node("Equal", sides, {}, o.equal_type);
  return w.node("Cast", {&equal, 1}, {{"to", onnx_dtype(c.node.type.dtype)}}, c.node.type);
}

GraphWriter::Ref openvino_one_hot(const LowerContext& c) {
  const OneHotOperands o = one_hot_operands(c);
  GraphWriter& w = c.writer;
  const GraphWriter::Ref to_column[] = {c.inputs[0], w.constant_i64(o.column_type.shape)};
  const GraphWriter::Ref column =
      w.node("opset1::Reshape", to_column, {{"special_zero", std::string("false")}}, o.column_type);
  const GraphWriter::Ref sides[] = {column, w.constant(o.columns)};
  const GraphWriter::Ref equal = w.node("opset1::Equal", sides, numpy_broadcast(), o.equal_type);
  return w.node("opset1::Convert", {&equal, 1},
                {{"destination_type", openvino_dtype(c.node.type.dtype)}}, c.node.type);
}

constexpr OpDef kOneHot = {
    .name = "one_hot",
    .arity = 1,
    .attrs = kOneHotAttrs,
    .traits = {},
    .summary =
        "i32 [N] → [N, depth]: 1 in the column that the index names, else 0; all 0 for an "
        "index outside [0, depth).",
    .infer = infer_one_hot,
    .kernel = one_hot_kernel,
    .vjp = nullptr,
    .no_grad_reason = "indices are integers",
    .onnx = onnx_one_hot,
    .openvino = openvino_one_hot,
    .samples =
        [] {
          const auto to = [](int64_t depth, DType dtype) {
            return Attrs{{"depth", depth}, {"dtype", name_of(dtype)}};
          };
          return std::vector<OpSample>{
              {.inputs = {{DType::kI32, {9}}}, .attrs = to(4, DType::kF32), .low = -2, .high = 5},
              {.inputs = {{DType::kI32, {3}}}, .attrs = to(4, DType::kI32), .low = -2, .high = 5}};
        },
};

// ---- iota --------------------------------------------------------------------------------------

constexpr AttrSpec kIotaAttrs[] = {
    {"axis", AttrKind::kInteger}, {"dtype", AttrKind::kString}, {"shape", AttrKind::kIntegers}};

Result<TensorType> infer_iota(Types, const Attrs& attrs) {
  Result<TensorType> type = type_of(attrs);
  if (!type.ok()) return type;
  if (type.value().dtype == DType::kPred) return broken("the dtype is numeric");
  const int64_t axis = attrs.integer("axis");
  if (axis < 0 || axis >= static_cast<int64_t>(type.value().shape.size())) {
    return broken("axis is a dimension of the shape");
  }
  return type;
}

// The counting line: `type` with size 1 in all dimensions but the axis.
Tensor iota_line(const TensorType& type, const Attrs& attrs) {
  const size_t axis = static_cast<size_t>(attrs.integer("axis"));
  Shape shape(type.shape.size(), 1);
  shape[axis] = type.shape[axis];
  Tensor line(type.dtype, shape);
  for (int64_t i = 0; i < line.size(); ++i) set_element(line, i, static_cast<double>(i));
  return line;
}

void iota_kernel(Operands, const Attrs& attrs, Tensor& out) {
  const Tensor line = iota_line({out.dtype(), out.shape()}, attrs);
  copy_strided(out.shape(), dtype_bytes(out.dtype()),
               {line.data(), broadcast_strides(line.shape(), out.shape())},
               {out.mutable_data(), strides_of(out.shape())});
}

constexpr OpDef kIota = {
    .name = "iota",
    .arity = 0,
    .attrs = kIotaAttrs,
    .traits = {},
    .summary = "Each element is its own index along `axis`.",
    .infer = infer_iota,
    .kernel = iota_kernel,
    .vjp = nullptr,
    .no_grad_reason = "it has no operands",
    .onnx =
        [](const LowerContext& c) { return onnx_spread(c, iota_line(c.node.type, c.node.attrs)); },
    .openvino =
        [](const LowerContext& c) {
          return openvino_spread(c, iota_line(c.node.type, c.node.attrs));
        },
    .samples =
        [] {
          const auto of = [](DType dtype, Shape shape, int64_t axis) {
            return Attrs{{"axis", axis}, {"dtype", name_of(dtype)}, {"shape", std::move(shape)}};
          };
          return std::vector<OpSample>{{.attrs = of(DType::kF32, {3, 4}, 1)},
                                       {.attrs = of(DType::kF32, {5}, 0)},
                                       {.attrs = of(DType::kI32, {3, 4}, 0)}};
        },
};

// ---- constant ----------------------------------------------------------------------------------

constexpr AttrSpec kConstantAttrs[] = {
    {"dtype", AttrKind::kString}, {"shape", AttrKind::kIntegers}, {"value", AttrKind::kReal}};

// Largest whole number of an integer dtype, as far as f64 holds it.
double largest(DType dtype) {
  switch (dtype) {
    case DType::kPred:
      return 1;
    case DType::kU8:
      return 255;
    case DType::kI32:
      return 2147483647.0;
    default:
      return 9007199254740992.0;  // 2^53
  }
}

Result<TensorType> infer_constant(Types, const Attrs& attrs) {
  Result<TensorType> type = type_of(attrs);
  if (!type.ok()) return type;
  const DType dtype = type.value().dtype;
  if (is_float(dtype)) return type;
  const double value = attrs.real("value");
  const double smallest = dtype == DType::kU8 || dtype == DType::kPred ? 0.0 : -largest(dtype);
  if (!(value >= smallest && value <= largest(dtype)) || value != std::trunc(value)) {
    return broken("the value is a whole number that the dtype holds");
  }
  return type;
}

Tensor scalar_of(const TensorType& type, const Attrs& attrs) {
  Tensor scalar(type.dtype, Shape(type.shape.size(), 1));
  set_element(scalar, 0, attrs.real("value"));
  return scalar;
}

void constant_kernel(Operands, const Attrs& attrs, Tensor& out) {
  const Tensor scalar = scalar_of({out.dtype(), out.shape()}, attrs);
  copy_strided(out.shape(), dtype_bytes(out.dtype()),
               {scalar.data(), broadcast_strides(scalar.shape(), out.shape())},
               {out.mutable_data(), strides_of(out.shape())});
}

constexpr OpDef kConstant = {
    .name = "constant",
    .arity = 0,
    .attrs = kConstantAttrs,
    .traits = {},
    .summary = "One number in every element; larger constants are inputs of the graph.",
    .infer = infer_constant,
    .kernel = constant_kernel,
    .vjp = nullptr,
    .no_grad_reason = "it has no operands",
    .onnx =
        [](const LowerContext& c) { return onnx_spread(c, scalar_of(c.node.type, c.node.attrs)); },
    .openvino =
        [](const LowerContext& c) {
          return openvino_spread(c, scalar_of(c.node.type, c.node.attrs));
        },
    .samples =
        [] {
          const auto of = [](DType dtype, Shape shape, double value) {
            return Attrs{{"dtype", name_of(dtype)}, {"shape", std::move(shape)}, {"value", value}};
          };
          return std::vector<OpSample>{{.attrs = of(DType::kF32, {3, 4}, 0.1)},
                                       {.attrs = of(DType::kF32, {1, 1}, -2.5)},
                                       {.attrs = of(DType::kF32, {}, 1e-5)},
                                       {.attrs = of(DType::kI32, {2, 2}, -7)}};
        },
};

constexpr const OpDef* kRows[] = {&kGather, &kOneHot, &kIota, &kConstant};

}  // namespace

std::span<const OpDef* const> index_rows() { return kRows; }

Value gather(Value table, Value indices) { return table.builder->apply(kGather, {table, indices}); }

Value one_hot(Value indices, int64_t depth, DType dtype) {
  return indices.builder->apply(kOneHot, {indices}, {{"depth", depth}, {"dtype", name_of(dtype)}});
}

Value iota(Builder& builder, TensorType type, int64_t axis) {
  return builder.apply(
      kIota, {},
      {{"axis", axis}, {"dtype", name_of(type.dtype)}, {"shape", std::move(type.shape)}});
}

Value constant(Builder& builder, TensorType type, double value) {
  return builder.apply(
      kConstant, {},
      {{"dtype", name_of(type.dtype)}, {"shape", std::move(type.shape)}, {"value", value}});
}

}  // namespace npu::ops
