// Printing of graphs, and the values that are written in the text form.
#include "ir/text.h"

#include <algorithm>
#include <charconv>

#include "ir/text_chars.h"

namespace npu {
namespace {

void append_quoted(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_integer(std::string& out, int64_t value) { out += std::to_string(value); }

// The shortest digits that read back as the same bits, always recognisable as a real.
void append_real(std::string& out, double value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  const std::string_view text(digits, static_cast<size_t>(end - digits));
  out += text;
  if (!looks_real(text)) out += ".0";
}

void append_value(std::string& out, const AttrValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    append_integer(out, *integer);
  } else if (const auto* real = std::get_if<double>(&value)) {
    append_real(out, *real);
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    append_quoted(out, *text);
  } else {
    const auto& list = std::get<std::vector<int64_t>>(value);
    out += '[';
    for (size_t i = 0; i < list.size(); ++i) {
      if (i > 0) out += ',';
      append_integer(out, list[i]);
    }
    out += ']';
  }
}

void append_id(std::string& out, NodeId id) {
  out += '%';
  append_integer(out, id);
}

void append_node(std::string& out, const Node& node, NodeId id) {
  append_id(out, id);
  out += " = ";
  if (node.is_input()) {
    out += "input ";
    append_quoted(out, node.name);
  } else {
    out += node.op->name;
    out += '(';
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (i > 0) out += ", ";
      append_id(out, node.inputs[i]);
    }
    out += ')';
  }
  const auto& attrs = node.attrs.items();
  for (size_t i = 0; i < attrs.size(); ++i) {
    out += i == 0 ? " {" : ", ";
    out += attrs[i].first;
    out += '=';
    append_value(out, attrs[i].second);
  }
  if (!attrs.empty()) out += '}';
  out += " : ";
  out += node.type.text();
}

}  // namespace

std::string print_node(const Graph& graph, NodeId id) {
  std::string out;
  append_node(out, graph.node(id), id);
  return out;
}

std::string print_graph(const Graph& graph) {
  std::string out = "graph ";
  const std::string& name = graph.name();
  if (!name.empty() && std::all_of(name.begin(), name.end(), is_word_char)) {
    out += name;
  } else {
    append_quoted(out, name);
  }
  out += '\n';
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    append_node(out, graph.nodes()[i], static_cast<NodeId>(i));
    out += '\n';
  }
  for (const GraphOutput& output : graph.outputs()) {
    out += "output ";
    append_quoted(out, output.name);
    out += " = ";
    append_id(out, output.node);
    out += '\n';
  }
  return out;
}

}  // namespace npu
