// The table itself: families put in order, lookup by name, the interpreter, the generated page.
#include "ops/table.h"

#include <algorithm>

#include "ops/rows.h"

namespace npu {
namespace {

struct Family {
  std::string_view title;
  std::span<const OpDef* const> rows;
};

std::vector<Family> families() {
  return {{"Elementwise arithmetic", ops::elementwise_rows()},
          {"Dtypes and choices", ops::logic_rows()},
          {"Contraction", ops::matmul_rows()},
          {"Reductions", ops::reduce_rows()},
          {"Movement", ops::movement_rows()},
          {"Indices and constants", ops::index_rows()}};
}

// The position in `nodes` after which each value is no longer read; outputs stay to the end.
std::vector<size_t> last_uses(const Graph& graph) {
  std::vector<size_t> last(graph.nodes().size(), 0);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    for (const NodeId operand : graph.nodes()[i].inputs) last[static_cast<size_t>(operand)] = i;
  }
  for (const GraphOutput& output : graph.outputs()) {
    last[static_cast<size_t>(output.node)] = graph.nodes().size();
  }
  return last;
}

Tensor bound_input(const Graph& graph, const Node& node,
                   const std::map<std::string, Tensor>& inputs) {
  const auto given = inputs.find(node.name);
  const std::string where = "graph " + graph.name() + ": input " + node.name;
  NPU_CHECK(given != inputs.end(), where + " is missing");
  const TensorType type = {given->second.dtype(), given->second.shape()};
  NPU_CHECK(type == node.type, where + " is " + node.type.text() + ", not " + type.text());
  return given->second;
}

std::string markdown_row(const OpDef& row) {
  std::string attrs;
  for (const AttrSpec& spec : row.attrs) {
    if (!attrs.empty()) attrs.append(", ");
    attrs.append("`").append(spec.name).append("` ").append(attr_kind_name(spec.kind));
    if (!spec.required) attrs.append(" (optional)");
  }
  std::string line = "| `";
  line.append(row.name).append("` | ");
  line.append(row.arity < 0 ? "1 or more" : std::to_string(row.arity)).append(" | ");
  line.append(attrs).append(" | ").append(row.summary).append(" | ");
  if (row.vjp != nullptr) return line.append("yes |\n");
  return line.append("none: ").append(row.no_grad_reason).append(" |\n");
}

}  // namespace

std::span<const OpDef* const> op_table() {
  static const std::vector<const OpDef*> rows = [] {
    std::vector<const OpDef*> all;
    for (const Family& family : families()) {
      all.insert(all.end(), family.rows.begin(), family.rows.end());
    }
    return all;
  }();
  return rows;
}

const OpDef* find_op(std::string_view name) {
  const auto rows = op_table();
  const auto at =
      std::find_if(rows.begin(), rows.end(), [&](const OpDef* row) { return row->name == name; });
  return at == rows.end() ? nullptr : *at;
}

std::vector<Tensor> interpret(const Graph& graph, const std::map<std::string, Tensor>& inputs) {
  const std::vector<size_t> last = last_uses(graph);
  std::vector<Tensor> values(graph.nodes().size());
  for (size_t i = 0; i < values.size(); ++i) {
    const Node& node = graph.nodes()[i];
    if (node.is_input()) {
      values[i] = bound_input(graph, node, inputs);
      continue;
    }
    std::vector<Tensor> operands;
    for (const NodeId id : node.inputs) operands.push_back(values[static_cast<size_t>(id)]);
    values[i] = Tensor(node.type.dtype, node.type.shape);
    node.op->kernel(operands, node.attrs, values[i]);
    for (const NodeId id : node.inputs) {
      if (last[static_cast<size_t>(id)] == i) values[static_cast<size_t>(id)] = Tensor();
    }
  }
  std::vector<Tensor> outputs;
  for (const GraphOutput& output : graph.outputs()) {
    outputs.push_back(values[static_cast<size_t>(output.node)]);
  }
  return outputs;
}

std::string op_table_markdown() {
  std::string page =
      "# The op table\n\n"
      "Generated from the rows in `src/ops` (`npu::op_table_markdown`); a test compares.\n"
      "Operands of elementwise ops have equal rank; dimensions of size 1 are repeated to match.\n"
      "Arithmetic is f32 with one rounding to the result's dtype.\n";
  for (const Family& family : families()) {
    page.append("\n## ").append(family.title);
    page.append("\n\n| op | operands | attributes | meaning | derivative rule |\n");
    page.append("| --- | --- | --- | --- | --- |\n");
    for (const OpDef* row : family.rows) page.append(markdown_row(*row));
  }
  return page;
}

}  // namespace npu
