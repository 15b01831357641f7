// ONNX, opset 17: the graph as protobuf bytes. Field numbers are those of onnx.proto3.
#include <bit>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "backend/graph_writers.h"
#include "backend/lowering.h"
#include "backend/onnx_patterns.h"
#include "ops/rows.h"

namespace npu {
namespace {

constexpr int64_t kIrVersion = 8;
constexpr int64_t kOpset = 17;

// One protobuf message under construction: fields are appended in any order.
class Message {
 public:
  void integer(int field, int64_t value) {
    key(field, 0);
    varint(static_cast<uint64_t>(value));
  }
  void real32(int field, float value) {
    key(field, 5);
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift & 0xff);
  }
  void text(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    bytes_ += value;
  }
  void message(int field, const Message& value) { text(field, value.bytes_); }
  std::string take() && { return std::move(bytes_); }

 private:
  void key(int field, int wire_type) { varint(static_cast<uint64_t>(field << 3 | wire_type)); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

Message attribute_message(const std::string& name, const AttrValue& value) {
  enum AttributeType { kFloat = 1, kInt = 2, kString = 3, kInts = 7 };
  Message attribute;
  attribute.text(1, name);
  AttributeType type = kInt;
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    attribute.integer(3, *integer);
  } else if (const auto* real = std::get_if<double>(&value)) {
    attribute.real32(2, static_cast<float>(*real));
    type = kFloat;
  } else if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) {
    for (const int64_t item : *integers) attribute.integer(8, item);
    type = kInts;
  } else {
    attribute.text(4, std::get<std::string>(value));
    type = kString;
  }
  attribute.integer(20, type);
  return attribute;
}

Message value_info(const std::string& name, const TensorType& type) {
  Message shape;
  for (const int64_t dim : type.shape) {
    Message dimension;
    dimension.integer(1, dim);
    shape.message(1, dimension);
  }
  Message tensor_type, any_type, info;
  tensor_type.integer(1, ops::onnx_dtype(type.dtype));
  tensor_type.message(2, shape);
  any_type.message(1, tensor_type);
  info.text(1, name);
  info.message(2, any_type);
  return info;
}

class OnnxWriter : public GraphWriter {
 public:
  // Names of inputs and outputs are the graph's own; all others must keep clear of them.
  explicit OnnxWriter(const Graph& graph) {
    for (const NodeId id : graph.inputs()) input_names_.insert(graph.node(id).name);
    reserved_ = input_names_;
    for (const GraphOutput& output : graph.outputs()) reserved_.insert(output.name);
  }

  Ref input(const std::string& name, const TensorType& type) {
    graph_.message(11, value_info(name, type));
    return add_value({name, type, true});
  }

  Ref outside_constant(const std::string& name, const TensorType& type) {
    constexpr int64_t kExternal = 1;  // TensorProto.DataLocation
    Message location, tensor;
    location.text(1, "location");
    location.text(2, name);
    for (const int64_t dim : type.shape) tensor.integer(1, dim);
    tensor.integer(2, ops::onnx_dtype(type.dtype));
    tensor.text(8, name);
    tensor.message(13, location);
    tensor.integer(14, kExternal);
    graph_.message(5, tensor);
    return add_value({name, type, true});
  }

  Ref node(std::string_view type, std::span<const Ref> inputs, const Attrs& attrs,
           const TensorType& out) override {
    const Ref ref = add_value({fresh_name(type), out, false});
    nodes_.push_back({std::string(type), {inputs.begin(), inputs.end()}, attrs, ref});
    return ref;
  }

  Ref constant(const Tensor& value) override {
    const std::string bytes(reinterpret_cast<const char*>(value.data()), value.bytes());
    const TensorType type{value.dtype(), value.shape()};
    const auto [known, is_new] = constants_.try_emplace(type.text() + ":" + bytes, Ref{0});
    if (!is_new) return known->second;
    const std::string name = fresh_name("Const");
    Message tensor;
    for (const int64_t dim : type.shape) tensor.integer(1, dim);
    tensor.integer(2, ops::onnx_dtype(type.dtype));
    tensor.text(8, name);
    tensor.text(9, bytes);
    graph_.message(5, tensor);
    known->second = add_value({name, type, true});
    return known->second;
  }

  // Names the value; where it has a name already (an input, a second output) an Identity does.
  void output(Ref value, const std::string& name) {
    const TensorType type = values_[static_cast<size_t>(value)].type;
    if (values_[static_cast<size_t>(value)].named) value = node("Identity", {{value}}, {}, type);
    Value& named = values_[static_cast<size_t>(value)];
    // Inputs and outputs share one space of names in ONNX.
    named.name = input_names_.contains(name) ? fresh_name(name) : name;
    named.named = true;
    outputs_.push_back(value);
    graph_.message(12, value_info(named.name, type));
  }

  std::string model(const std::string& graph_name) && {
    std::vector<bool> needed(values_.size(), false);
    for (const Ref output : outputs_) needed[static_cast<size_t>(output)] = true;
    for (size_t i = nodes_.size(); i-- > 0;) {
      if (!needed[static_cast<size_t>(nodes_[i].output)]) continue;
      for (const Ref ref : nodes_[i].inputs) needed[static_cast<size_t>(ref)] = true;
    }
    for (const WrittenNode& written : nodes_) {
      if (!needed[static_cast<size_t>(written.output)]) continue;  // a pattern took its place
      Message message;
      for (const Ref ref : written.inputs) message.text(1, values_[static_cast<size_t>(ref)].name);
      message.text(2, values_[static_cast<size_t>(written.output)].name);
      message.text(3, values_[static_cast<size_t>(written.output)].name);
      message.text(4, written.type);
      for (const auto& [name, value] : written.attrs.items()) {
        message.message(5, attribute_message(name, value));
      }
      graph_.message(1, message);
    }
    graph_.text(2, graph_name);
    Message opset, proto;
    opset.text(1, "");
    opset.integer(2, kOpset);
    proto.integer(1, kIrVersion);
    proto.text(2, "npu-lora");
    proto.message(7, graph_);
    proto.message(8, opset);
    return std::move(proto).take();
  }

 private:
  struct Value {
    std::string name;
    TensorType type;
    bool named;  // an input, a constant or already an output
  };
  struct WrittenNode {
    std::string type;
    std::vector<Ref> inputs;
    Attrs attrs;
    Ref output;
  };

  Ref add_value(Value value) {
    values_.push_back(std::move(value));
    return static_cast<Ref>(values_.size() - 1);
  }

  std::string fresh_name(std::string_view hint) {
    std::string name = std::string(hint) + "_" + std::to_string(values_.size());
    while (!reserved_.insert(name).second) name += "_";
    return name;
  }

  std::set<std::string> input_names_, reserved_;
  std::vector<Value> values_;  // a Ref is an index
  std::vector<WrittenNode> nodes_;
  std::vector<Ref> outputs_;
  std::map<std::string, Ref> constants_;
  Message graph_;
};

}  // namespace

std::string write_onnx(const Graph& graph, const ConstantInputs& constants) {
  OnnxWriter writer(graph);
  std::vector<GraphWriter::Ref> refs(graph.nodes().size());
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const NodeId id = graph.inputs()[i];
    const Node& node = graph.node(id);
    refs[static_cast<size_t>(id)] = constants.contains(i)
                                        ? writer.outside_constant(node.name, node.type)
                                        : writer.input(node.name, node.type);
  }
  lower_nodes(graph, &OpDef::onnx, writer, refs,
              [&](NodeId id) { return write_onnx_pattern(graph, id, refs, writer); });
  for (const GraphOutput& output : graph.outputs()) {
    writer.output(refs[static_cast<size_t>(output.node)], output.name);
  }
  return std::move(writer).model(graph.name());
}

}  // namespace npu
