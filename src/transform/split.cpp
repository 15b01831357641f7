// Cuts a labelled graph into part graphs, and brings parts into the canonical form that dedupes
// them.
#include <set>

#include "ir/text.h"
#include "transform/partition.h"
#include "transform/schedule.h"

namespace npu {
namespace {

size_t at(NodeId id) { return static_cast<size_t>(id); }

std::string numbered(std::string prefix, size_t number) {
  return prefix.append(std::to_string(number));
}

class Splitter {
 public:
  Splitter(const Graph& graph, const PartLabels& labels)
      : graph_(graph),
        labels_(labels),
        crosses_(graph.nodes().size(), false),
        crossing_names_(graph.nodes().size()) {
    NPU_CHECK(labels.part.size() == graph.nodes().size(), graph.name());
    find_crossing_values();
    name_crossing_values();
  }

  Part part(int index) const {
    Builder builder(graph_.name() + "." + std::to_string(index));
    std::vector<Value> values(graph_.nodes().size());
    for (size_t id = 0; id < values.size(); ++id) {
      const Node& node = graph_.nodes()[id];
      if (node.is_input() || labels_.part[id] != index) continue;
      std::vector<Value> operands;
      for (NodeId operand : node.inputs) operands.push_back(read(builder, values, operand, index));
      values[id] = builder.apply(*node.op, std::move(operands), node.attrs);
    }
    write_outputs(builder, values, index);
    return {std::move(builder).build()};
  }

 private:
  int label(NodeId id) const { return labels_.part[at(id)]; }

  void find_crossing_values() {
    for (size_t id = 0; id < crosses_.size(); ++id) {
      for (NodeId operand : graph_.nodes()[id].inputs) {
        if (graph_.node(operand).is_input() || is_repeated(graph_, operand)) continue;
        NPU_CHECK(0 <= label(operand) && label(operand) <= labels_.part[id] &&
                      labels_.part[id] < labels_.count,
                  "part numbers rise along edges, but not from " + print_node(graph_, operand) +
                      " to " + print_node(graph_, static_cast<NodeId>(id)));
        if (label(operand) < labels_.part[id]) crosses_[at(operand)] = true;
      }
    }
  }

  // An output of the graph crosses under its own name, unless an input has that name too.
  void name_crossing_values() {
    std::set<std::string> taken;
    for (NodeId id : graph_.inputs()) taken.insert(graph_.node(id).name);
    for (const GraphOutput& output : graph_.outputs()) {
      std::string& name = crossing_names_[at(output.node)];
      if (crosses_[at(output.node)] && name.empty() && graph_.find_input(output.name) < 0)
        name = output.name;
    }
    for (const GraphOutput& output : graph_.outputs()) taken.insert(output.name);
    size_t counter = 0;
    for (size_t id = 0; id < crosses_.size(); ++id) {
      std::string& name = crossing_names_[id];
      if (!crosses_[id] || !name.empty()) continue;
      do {
        name = numbered("t", counter++);
      } while (taken.contains(name));
    }
  }

  // The value of `id` for a node of part `index`: computed here, an input of the graph, or
  // crossing.
  Value read(Builder& builder, std::vector<Value>& values, NodeId id, int index) const {
    const Node& node = graph_.node(id);
    Value& value = values[at(id)];
    if (value.valid()) return value;
    if (node.is_input()) {
      value = builder.input(node.name, node.type);
    } else if (is_repeated(graph_, id)) {
      value = builder.apply(*node.op, {}, node.attrs);
    } else {
      NPU_CHECK(label(id) < index, print_node(graph_, id));
      value = builder.input(crossing_names_[at(id)], node.type);
    }
    return value;
  }

  void write_outputs(Builder& builder, std::vector<Value>& values, int index) const {
    std::set<std::string> written;
    for (const GraphOutput& output : graph_.outputs()) {
      // An output that is an input of the graph is handed on by the first part.
      const bool here =
          graph_.node(output.node).is_input() ? index == 0 : label(output.node) == index;
      if (!here) continue;
      builder.output(output.name, read(builder, values, output.node, index));
      written.insert(output.name);
    }
    for (size_t id = 0; id < crosses_.size(); ++id) {
      if (!crosses_[id] || labels_.part[id] != index) continue;
      if (!written.contains(crossing_names_[id])) builder.output(crossing_names_[id], values[id]);
    }
  }

  const Graph& graph_;
  const PartLabels& labels_;
  std::vector<bool> crosses_;                // by node: read by a part after its own
  std::vector<std::string> crossing_names_;  // by node, "" unless it crosses
};

// Rebuilds `part` depth first from its outputs, so that the order of nodes and of inputs follows
// from the structure alone.
class Canonicalizer {
 public:
  explicit Canonicalizer(const Graph& part)
      : part_(part), builder_("part"), values_(part.nodes().size()) {}

  CanonicalPart run() && {
    CanonicalPart result;
    for (const GraphOutput& output : part_.outputs()) {
      build(output.node, result.input_names);
      builder_.output(numbered("o", result.output_names.size()), values_[at(output.node)]);
      result.output_names.push_back(output.name);
    }
    result.graph = std::move(builder_).build();
    return result;
  }

 private:
  void build(NodeId root, std::vector<std::string>& input_names) {
    std::vector<NodeId> stack = {root};
    while (!stack.empty()) {
      const NodeId id = stack.back();
      const Node& node = part_.node(id);
      const size_t depth = stack.size();
      for (size_t i = node.inputs.size(); i-- > 0;)
        if (!values_[at(node.inputs[i])].valid()) stack.push_back(node.inputs[i]);
      if (stack.size() > depth) continue;
      stack.pop_back();
      if (values_[at(id)].valid()) continue;
      if (node.is_input()) {
        values_[at(id)] = builder_.input(numbered("i", input_names.size()), node.type);
        input_names.push_back(node.name);
      } else {
        std::vector<Value> operands;
        for (NodeId operand : node.inputs) operands.push_back(values_[at(operand)]);
        values_[at(id)] = builder_.apply(*node.op, std::move(operands), node.attrs);
      }
    }
  }

  const Graph& part_;
  Builder builder_;
  std::vector<Value> values_;  // of part_'s nodes, in builder_
};

}  // namespace

std::vector<Part> split(const Graph& graph, const PartLabels& labels) {
  const Splitter splitter(graph, labels);
  std::vector<Part> parts;
  for (int index = 0; index < labels.count; ++index) parts.push_back(splitter.part(index));
  return parts;
}

CanonicalPart canonicalize(const Graph& part) { return Canonicalizer(part).run(); }

}  // namespace npu
