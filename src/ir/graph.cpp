// Graph queries and the hash-consing Builder.
#include "ir/graph.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace npu {
namespace {

void mix(size_t& hash, size_t value) {
  hash ^= value + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
}

size_t hash_value(const AttrValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return std::hash<int64_t>{}(*integer);
  if (const auto* real = std::get_if<double>(&value)) return std::bit_cast<uint64_t>(*real);
  if (const auto* text = std::get_if<std::string>(&value)) return std::hash<std::string>{}(*text);
  size_t hash = 0;
  for (const int64_t item : std::get<std::vector<int64_t>>(value)) {
    mix(hash, std::hash<int64_t>{}(item));
  }
  return hash;
}

// Only the place in Builder's index depends on this, never the numbering of nodes.
size_t hash_node(const Node& node) {
  size_t hash = std::hash<const OpDef*>{}(node.op);
  for (const NodeId id : node.inputs) mix(hash, static_cast<size_t>(id));
  for (const auto& [name, value] : node.attrs.items()) {
    mix(hash, std::hash<std::string>{}(name));
    mix(hash, hash_value(value));
  }
  return hash;
}

}  // namespace

NodeId Graph::find_input(std::string_view name) const {
  for (const NodeId id : inputs_) {
    if (node(id).name == name) return id;
  }
  return -1;
}

NodeId Graph::find_output(std::string_view name) const {
  for (const GraphOutput& output : outputs_) {
    if (output.name == name) return output.node;
  }
  return -1;
}

int64_t Graph::num_contractions() const {
  return std::count_if(nodes_.begin(), nodes_.end(),
                       [](const Node& n) { return !n.is_input() && n.op->traits.contraction; });
}

double Graph::contraction_flops() const {
  double flops = 0;
  for (const Node& n : nodes_) {
    if (n.is_input() || !n.op->traits.contraction) continue;
    // Elements of the left operand per output row are the contracted length K, whatever the layout.
    const double out_elements = static_cast<double>(num_elements(n.type.shape));
    const double rows = out_elements / static_cast<double>(n.type.shape.back());
    const double lhs_elements = static_cast<double>(num_elements(node(n.inputs[0]).type.shape));
    flops += 2 * out_elements * (lhs_elements / rows);
  }
  return flops;
}

int64_t Graph::input_bytes() const {
  int64_t bytes = 0;
  for (const NodeId id : inputs_) bytes += node(id).type.bytes();
  return bytes;
}

int64_t Graph::output_bytes() const {
  int64_t bytes = 0;
  for (const GraphOutput& output : outputs_) bytes += node(output.node).type.bytes();
  return bytes;
}

const TensorType& Value::type() const {
  NPU_CHECK(valid(), "an invalid Value has no type");
  return builder->node(id).type;
}

Builder::Builder(std::string graph_name) : name_(std::move(graph_name)) {}

Value Builder::add_node(Node node) {
  const NodeId id = static_cast<NodeId>(nodes_.size());
  nodes_.push_back(std::move(node));
  return Value{this, id};
}

Value Builder::input(std::string_view name, TensorType type) {
  if (const auto known = input_index_.find(std::string(name)); known != input_index_.end()) {
    NPU_CHECK(node(known->second).type == type,
              "graph " + name_ + ": input " + std::string(name) + " is declared as " +
                  node(known->second).type.text() + " and as " + type.text());
    return Value{this, known->second};
  }
  const auto broken = broken_type_bound(type);
  NPU_CHECK(!broken, "graph " + name_ + ": input " + std::string(name) + ": " + *broken);
  Node node;
  node.type = std::move(type);
  node.name = std::string(name);
  const Value value = add_node(std::move(node));
  inputs_.push_back(value.id);
  input_index_.emplace(std::string(name), value.id);
  return value;
}

Result<Value> Builder::try_apply(const OpDef& op, std::vector<Value> operands, Attrs attrs) {
  Node node;
  std::vector<TensorType> types;
  for (const Value& operand : operands) {
    NPU_CHECK(operand.builder == this, "graph " + name_ + ": operand of " + std::string(op.name) +
                                           " is invalid or of another graph");
    node.inputs.push_back(operand.id);
    types.push_back(operand.type());
  }
  node.op = &op;
  node.attrs = std::move(attrs);
  const size_t hash = hash_node(node);
  const auto [first, last] = index_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const Node& other = this->node(it->second);
    if (other.op == node.op && other.inputs == node.inputs && other.attrs == node.attrs) {
      return Value{this, it->second};
    }
  }
  Result<TensorType> type = infer_checked(op, types, node.attrs);
  if (!type.ok()) return type.error();
  node.type = std::move(type.value());
  const Value value = add_node(std::move(node));
  index_.emplace(hash, value.id);
  return value;
}

Value Builder::apply(const OpDef& op, std::vector<Value> operands, Attrs attrs) {
  Result<Value> result = try_apply(op, std::move(operands), std::move(attrs));
  NPU_CHECK(result.ok(), "graph " + name_ + ": " + result.error().text());
  return result.value();
}

void Builder::output(std::string name, Value value) {
  NPU_CHECK(value.builder == this, "graph " + name_ + ": output " + name + " is of another graph");
  const bool first = output_names_.insert(name).second;
  NPU_CHECK(first, "graph " + name_ + ": output " + name + " is declared twice");
  outputs_.push_back({std::move(name), value.id});
}

Graph Builder::build(bool drop_unused_inputs) && {
  std::vector<bool> live(nodes_.size(), false);
  for (const GraphOutput& output : outputs_) live[static_cast<size_t>(output.node)] = true;
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (!live[i]) continue;
    for (const NodeId operand : nodes_[i].inputs) live[static_cast<size_t>(operand)] = true;
  }
  Graph graph;
  graph.name_ = std::move(name_);
  std::vector<NodeId> renumbered(nodes_.size(), -1);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    if (!live[i] && (drop_unused_inputs || !node.is_input())) continue;
    const NodeId id = static_cast<NodeId>(graph.nodes_.size());
    renumbered[i] = id;
    for (NodeId& operand : node.inputs) operand = renumbered[static_cast<size_t>(operand)];
    if (node.is_input()) graph.inputs_.push_back(id);
    graph.nodes_.push_back(std::move(node));
  }
  for (GraphOutput& output : outputs_) {
    graph.outputs_.push_back(
        {std::move(output.name), renumbered[static_cast<size_t>(output.node)]});
  }
  return graph;
}

Value import_node(Builder& builder, const Graph& graph, NodeId id, std::vector<Value>& mapped) {
  if (mapped.size() < graph.nodes().size()) mapped.resize(graph.nodes().size());
  std::vector<NodeId> pending = {id};  // an explicit stack: graphs may be deep
  while (!pending.empty()) {
    const NodeId next = pending.back();
    Value& value = mapped[static_cast<size_t>(next)];
    const Node& node = graph.node(next);
    const size_t waiting = pending.size();
    if (!value.valid() && !node.is_input()) {
      for (const NodeId operand : node.inputs) {
        if (!mapped[static_cast<size_t>(operand)].valid()) pending.push_back(operand);
      }
      if (pending.size() > waiting) continue;
      std::vector<Value> operands;
      for (const NodeId operand : node.inputs) {
        operands.push_back(mapped[static_cast<size_t>(operand)]);
      }
      value = builder.apply(*node.op, std::move(operands), node.attrs);
    } else if (!value.valid()) {
      value = builder.input(node.name, node.type);
    }
    pending.pop_back();
  }
  return mapped[static_cast<size_t>(id)];
}

}  // namespace npu
