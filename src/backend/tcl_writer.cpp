// A part as TCL text: axes are named, blocks formed, memory laid out, and all of it printed.
#include "backend/tcl_writer.h"

#include <array>
#include <charconv>
#include <map>

#include "backend/tcl_layout.h"
#include "base/text.h"

namespace npu {
namespace {

using tcl::Block;
using tcl::FunctionLayout;
using tcl::Operand;
using tcl::Run;
using tcl::Statement;
using tcl::StoredTensor;
using tcl::TensorUse;

std::string number_text(float value) {
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.begin(), digits.end(), value).ptr;
  std::string text(digits.begin(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return "f" + text;
}

class Printer {
 public:
  Printer(const tcl::Axes& axes, const FunctionLayout& layout) : axes_(axes), layout_(layout) {}

  std::string print() {
    std::string text = "#tactic_kernel_dsl\ndef part(";
    std::string_view separator = "\n";
    for (const StoredTensor& tensor : layout_.tensors) {
      if (!tensor.is_input) continue;
      text += separator;
      text += "    " + tensor.name + ": " + type(tensor.axes, tensor.dtype);
      separator = ",\n";
    }
    std::vector<std::string> types, names;
    for (const size_t t : layout_.outputs) {
      types.push_back(type(layout_.tensors[t].axes, layout_.tensors[t].dtype));
      names.push_back(layout_.tensors[t].name);
    }
    text += "\n) -> " + joined(types) + ":\n";
    for (const auto& [name, size] : sizes_) {
      text += "    assert " + name + " == " + std::to_string(size) + "\n";
    }
    for (const Statement& statement : layout_.statements) body_ += print(statement);
    return text + body_ + "    return " + joined(names) + "\n";
  }

 private:
  // Axes are numbered as they appear, first in the signature.
  const std::string& axis(const Run& run) {
    const auto [at, added] = names_.emplace(run, "");
    if (added) {
      at->second = "A" + std::to_string(names_.size() - 1);
      int64_t size = 1;
      for (const int leaf : run) size *= axes_.table.size(leaf);
      sizes_.emplace_back(at->second, size);
    }
    return at->second;
  }

  std::string list(const std::vector<Run>& runs, std::string_view separator = ", ") {
    std::vector<std::string> words;
    for (const Run& run : runs) words.push_back(axis(run));
    return "[" + joined(words, separator) + "]";
  }

  std::string type(const std::vector<Run>& runs, DType dtype) {
    return list(runs) + "/" + std::string(dtype_name(dtype));
  }

  // The tensor under the names of its reader: a reshape moves nothing.
  std::string source(const TensorUse& use) {
    const StoredTensor& tensor = layout_.tensors[use.tensor];
    if (use.axes == tensor.axes) return tensor.name;
    const std::string seen = type(use.axes, tensor.dtype);
    const auto [at, added] = views_.emplace(tensor.name + seen, "");
    if (added) {
      at->second = "v" + std::to_string(views_.size() - 1);
      body_ += "    " + at->second + ": " + seen + " = reshape(" + tensor.name + ")\n";
    }
    return at->second;
  }

  std::string print(const Statement& s) {
    const StoredTensor& result = layout_.tensors[s.result];
    std::vector<std::string> sources;
    for (const TensorUse& use : s.uses) sources.push_back(source(use));
    std::string text = "    " + result.name + ": " + type(result.axes, result.dtype) + " = ";
    if (s.kind == Statement::Kind::kSlice) {
      return text + "slice(" + sources.front() + ", " + axis(s.whole) + ", " +
             std::to_string(s.offset) + ")\n";
    }
    if (s.kind == Statement::Kind::kConcat) return text + "concat([" + joined(sources) + "])\n";
    text += "tk." + (s.block ? s.block->kind() : "Elementwise") + "(\n";
    for (size_t i = 0; i < sources.size(); ++i) {
      text += "        %" + std::to_string(i) + " = read(" + sources[i] + ")\n";
    }
    if (s.block && !s.block->steps.empty()) {
      text += steps(*s.block, s, result);
    } else {  // a block without a step makes furiosa-tcc 2026.4 panic behind a contraction
      text += "        %1 = ve.exec(%0 * f1.0)\n";
    }
    return text + "        write.to(" + type(result.axes, result.dtype) + ")\n    )\n";
  }

  std::string steps(const Block& block, const Statement& s, const StoredTensor& result) {
    const size_t base = s.uses.size();
    const auto local = [&](const Operand& o) {
      if (o.kind == Operand::Kind::kConstant) return number_text(o.value);
      return "%" + std::to_string(static_cast<size_t>(o.index) +
                                  (o.kind == Operand::Kind::kStep ? base : 0));
    };
    std::string text;
    for (size_t i = 0; i < block.steps.size(); ++i) {
      const tcl::Step& step = block.steps[i];
      text += "        %" + std::to_string(base + i) + " = ";
      if (block.contracts && i == 0) {
        text += "dpe.exec(%0,%1 -> " + list(result.axes) + ")\n";
      } else if (!step.reduced.empty()) {
        text += "ve.exec(" + step.op + " t" + list(reduced(step, s), " ") + " " +
                local(step.operands[0]) + ")\n";
      } else if (step.operands.size() == 1) {
        text += "ve.exec(" + step.op + " " + local(step.operands[0]) + ")\n";
      } else {
        text += "ve.exec(" + local(step.operands[0]) + " " + step.op + " " +
                local(step.operands[1]) + ")\n";
      }
    }
    return text;
  }

  // The block's names for the axes that a step sums away; its first operand has them all.
  static std::vector<Run> reduced(const tcl::Step& step, const Statement& s) {
    std::vector<Run> out;
    for (const Run& run : s.uses.front().axes) {
      for (const int leaf : step.reduced) {
        if (run.front() == leaf) out.push_back(run);
      }
    }
    return out;
  }

  const tcl::Axes& axes_;
  const FunctionLayout& layout_;
  std::map<Run, std::string> names_;
  std::vector<std::pair<std::string, int64_t>> sizes_;
  std::map<std::string, std::string> views_;
  std::string body_;
};

}  // namespace

Result<TclFunction> write_tcl(const Graph& part) {
  const Result<tcl::Axes> axes = tcl::name_axes(part);
  if (!axes) return axes.error();
  const Result<std::vector<tcl::Item>> items = tcl::form_blocks(part, axes.value());
  if (!items) return items.error();
  const Result<FunctionLayout> layout = tcl::lay_out(part, axes.value(), items.value());
  if (!layout) return layout.error();

  TclFunction function;
  function.text = Printer(axes.value(), layout.value()).print();
  for (const StoredTensor& tensor : layout.value().tensors) {
    if (!tensor.is_input) continue;
    function.inputs.push_back({part.node(tensor.node).name, part.node(tensor.node).type});
  }
  for (const GraphOutput& output : part.outputs()) {
    function.outputs.push_back({output.name, part.node(output.node).type});
  }
  for (const Statement& s : layout.value().statements) {
    function.blocks += s.kind == Statement::Kind::kBlock || s.kind == Statement::Kind::kCopy;
    function.contractions += s.block != nullptr && s.block->contracts;
  }
  return function;
}

std::optional<std::string> tcl_unsupported(const Graph& graph, NodeId id) {
  if (auto reason = tcl::unsupported_node(graph, id)) return reason;
  const Node& node = graph.node(id);
  for (const GraphOutput& output : graph.outputs()) {
    if (output.node != id) continue;
    if (auto reason = tcl::not_a_tensor(graph, id)) return "an output is " + *reason;
  }
  if (node.is_input()) return std::nullopt;
  if (node.op->name == "matmul" || node.op->name == "slice" || node.op->name == "concat") {
    for (const NodeId in : node.inputs) {
      if (auto reason = tcl::not_a_tensor(graph, in)) return "an operand is " + *reason;
    }
  }
  if (node.op->name == "reshape") {
    tcl::AxisTable table;
    tcl::Atoms from, to;
    for (const int64_t n : graph.node(node.inputs[0]).type.shape) {
      for (const int atom : table.fresh(n)) from.push_back(atom);
    }
    for (const int64_t n : node.type.shape) {
      for (const int atom : table.fresh(n)) to.push_back(atom);
    }
    if (!table.unify(from, to)) return std::string(tcl::kNoCommonAxes);
  }
  return std::nullopt;
}

}  // namespace npu
