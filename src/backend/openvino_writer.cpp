// OpenVINO IR version 11: a list of layers with typed ports, a list of edges, and constants by
// offset.
#include <cstdio>
#include <map>
#include <vector>

#include "backend/graph_writers.h"
#include "backend/lowering.h"

namespace npu {
namespace {

constexpr size_t kConstantAlignment = 64;

std::string_view element_name(DType dtype) {
  return dtype == DType::kPred ? "boolean" : dtype_name(dtype);
}

std::string_view port_precision(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "FP32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "FP16";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kU8:
      return "U8";
    case DType::kPred:
      return "BOOL";
  }
  NPU_CHECK(false, "unknown dtype");
}

std::string xml_escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

// Tensor names stand in a comma-separated list.
std::string name_in_list(std::string_view name) {
  std::string escaped;
  for (const char c : name) escaped += c == ',' ? std::string("\\,") : std::string(1, c);
  return xml_escaped(escaped);
}

std::string comma_list(const std::vector<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) {
    if (!text.empty()) text += ',';
    text += std::to_string(value);
  }
  return text;
}

std::string attribute_text(const AttrValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value))
    return comma_list(*integers);
  if (const auto* real = std::get_if<double>(&value)) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", *real);
    return text;
  }
  return xml_escaped(std::get<std::string>(value));
}

class IrWriter : public GraphWriter {
 public:
  explicit IrWriter(std::string* weights) : weights_(*weights) { weights_.clear(); }

  Ref node(std::string_view type, std::span<const Ref> inputs, const Attrs& attrs,
           const TensorType& out) override {
    std::string data;
    for (const auto& [name, value] : attrs.items()) {
      data += " " + name + "=\"" + attribute_text(value) + "\"";
    }
    // Rows spell types "opset8::Slice".
    const size_t colons = type.find("::");
    NPU_CHECK(colons != std::string_view::npos, "an OpenVINO type without its opset");
    const std::string short_type(type.substr(colons + 2));
    const std::string name = short_type + "_" + std::to_string(layers_.size());
    return add({name,
                short_type,
                std::string(type.substr(0, colons)),
                std::move(data),
                {inputs.begin(), inputs.end()},
                out,
                {}});
  }

  Ref constant(const Tensor& value) override {
    const std::string bytes(reinterpret_cast<const char*>(value.data()), value.bytes());
    const TensorType type{value.dtype(), value.shape()};
    const auto [known, is_new] = constants_.try_emplace(type.text() + ":" + bytes, Ref{0});
    if (is_new) known->second = stored(value);
    return known->second;
  }

  // A constant that is not looked for among those written before: a whole weight.
  Ref stored(const Tensor& value) {
    weights_.resize((weights_.size() + kConstantAlignment - 1) / kConstantAlignment *
                    kConstantAlignment);
    const TensorType type{value.dtype(), value.shape()};
    std::string data = type_attributes(type);
    data += " offset=\"" + std::to_string(weights_.size()) + "\"";
    data += " size=\"" + std::to_string(value.bytes()) + "\"";
    weights_.append(reinterpret_cast<const char*>(value.data()), value.bytes());
    // The reader wants a non-empty file even for a constant without elements (reshaping to a
    // scalar).
    if (weights_.empty()) weights_.resize(kConstantAlignment);
    const std::string name = "Const_" + std::to_string(layers_.size());
    return add({name, "Const", "opset1", std::move(data), {}, type, {}});
  }

  Ref parameter(const std::string& name, const TensorType& type) {
    return add({name, "Parameter", "opset1", type_attributes(type), {}, type, {name}});
  }

  void result(Ref value, const std::string& name) {
    // A tensor name stands for one port only, and inputs are bound by theirs.
    for (const Layer& layer : layers_) {
      if (layer.type == "Parameter" && layer.name == name) return add_result(value, name);
    }
    layers_[static_cast<size_t>(value)].tensor_names.push_back(name);
    add_result(value, name);
  }

  std::string xml(const std::string& graph_name) const {
    std::string text = "<?xml version=\"1.0\"?>\n<net name=\"" + xml_escaped(graph_name) +
                       "\" version=\"11\">\n<layers>\n";
    std::string edges;
    for (size_t id = 0; id < layers_.size(); ++id) {
      append_layer(id, text);
      for (size_t port = 0; port < layers_[id].inputs.size(); ++port) {
        const size_t from = static_cast<size_t>(layers_[id].inputs[port]);
        edges += "<edge from-layer=\"" + std::to_string(from) + "\" from-port=\"" +
                 std::to_string(layers_[from].inputs.size()) + "\" to-layer=\"" +
                 std::to_string(id) + "\" to-port=\"" + std::to_string(port) + "\"/>\n";
      }
    }
    return text + "</layers>\n<edges>\n" + edges + "</edges>\n</net>\n";
  }

 private:
  // The output port's number is the number of inputs: ports are counted over both.
  struct Layer {
    std::string name, type, opset;
    std::string data;  // attributes of <data>, each with a leading space
    std::vector<Ref> inputs;
    TensorType out;
    std::vector<std::string> tensor_names;
  };

  Ref add(Layer layer) {
    layers_.push_back(std::move(layer));
    return static_cast<Ref>(layers_.size() - 1);
  }

  void add_result(Ref value, const std::string& name) {
    const TensorType type = layers_[static_cast<size_t>(value)].out;
    add({"Result:" + name, "Result", "opset1", "", {value}, type, {}});
  }

  static std::string type_attributes(const TensorType& type) {
    return " element_type=\"" + std::string(element_name(type.dtype)) + "\" shape=\"" +
           comma_list(type.shape) + "\"";
  }

  static std::string port_text(size_t number, const TensorType& type,
                               const std::vector<std::string>& names) {
    std::string text = "<port id=\"" + std::to_string(number) + "\" precision=\"" +
                       std::string(port_precision(type.dtype)) + "\"";
    for (size_t i = 0; i < names.size(); ++i) {
      text += (i == 0 ? " names=\"" : ",") + name_in_list(names[i]);
    }
    text += names.empty() ? ">" : "\">";
    for (const int64_t dim : type.shape) text += "<dim>" + std::to_string(dim) + "</dim>";
    return text + "</port>";
  }

  void append_layer(size_t id, std::string& text) const {
    const Layer& layer = layers_[id];
    text += "<layer id=\"" + std::to_string(id) + "\" name=\"" + xml_escaped(layer.name) +
            "\" type=\"" + layer.type + "\" version=\"" + layer.opset + "\">";
    if (!layer.data.empty()) text += "<data" + layer.data + "/>";
    if (!layer.inputs.empty()) {
      text += "<input>";
      for (size_t i = 0; i < layer.inputs.size(); ++i) {
        text += port_text(i, layers_[static_cast<size_t>(layer.inputs[i])].out, {});
      }
      text += "</input>";
    }
    if (layer.type != "Result") {
      text +=
          "<output>" + port_text(layer.inputs.size(), layer.out, layer.tensor_names) + "</output>";
    }
    text += "</layer>\n";
  }

  std::vector<Layer> layers_;  // a Ref is an index
  std::map<std::string, Ref> constants_;
  std::string& weights_;
};

}  // namespace

std::string write_openvino_ir(const Graph& graph, std::string* weights,
                              const ConstantInputs& constants) {
  IrWriter writer(weights);
  std::vector<GraphWriter::Ref> refs(graph.nodes().size());
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const NodeId id = graph.inputs()[i];
    const Node& node = graph.node(id);
    const auto known = constants.find(i);
    refs[static_cast<size_t>(id)] = known == constants.end()
                                        ? writer.parameter(node.name, node.type)
                                        : writer.stored(known->second);
  }
  lower_nodes(graph, &OpDef::openvino, writer, refs);
  for (const GraphOutput& output : graph.outputs()) {
    writer.result(refs[static_cast<size_t>(output.node)], output.name);
  }
  return writer.xml(graph.name());
}

}  // namespace npu
