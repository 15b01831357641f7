// An immutable list of typed nodes in topological order, and the hash-consing Builder that makes
// it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/op.h"

namespace npu {

using NodeId = int32_t;

// A node is an input (op == nullptr, name set) or one application of an op.
struct Node {
  const OpDef* op = nullptr;
  std::vector<NodeId> inputs;
  Attrs attrs;
  TensorType type;
  std::string name;  // inputs only

  bool is_input() const { return op == nullptr; }
};

struct GraphOutput {
  std::string name;
  NodeId node;
};

// Value type: passes return new graphs. Operands of a node always have smaller ids.
class Graph {
 public:
  const std::string& name() const { return name_; }
  const std::vector<Node>& nodes() const { return nodes_; }
  const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
  const std::vector<NodeId>& inputs() const { return inputs_; }  // in order of declaration
  const std::vector<GraphOutput>& outputs() const { return outputs_; }
  NodeId find_input(std::string_view name) const;   // -1 when absent
  NodeId find_output(std::string_view name) const;  // -1 when absent
  // Number of nodes with the contraction trait.
  int64_t num_contractions() const;
  // Floating-point operations of its contractions (2·M·N·K each).
  double contraction_flops() const;
  int64_t input_bytes() const;
  int64_t output_bytes() const;

 private:
  friend class Builder;
  friend struct GraphTestPeer;  // tests of the verifier plant faults that Builder refuses
  std::string name_;
  std::vector<Node> nodes_;
  std::vector<NodeId> inputs_;
  std::vector<GraphOutput> outputs_;
};

// A handle to a node under construction. Cheap to copy; valid while its Builder lives.
struct Value {
  Builder* builder = nullptr;
  NodeId id = -1;
  bool valid() const { return builder != nullptr; }
  const TensorType& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }
};

// Building the same node twice returns the first one, so equal subexpressions are one node.
class Builder {
 public:
  explicit Builder(std::string graph_name);
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // Declares an input, or returns it when declared before with the same type.
  Value input(std::string_view name, TensorType type);
  // Applies `op`; a broken shape rule is an InternalError that names op, operand types and graph.
  Value apply(const OpDef& op, std::vector<Value> operands, Attrs attrs = {});
  // The same, with the broken rule as a value (for the text parser and rewrites).
  Result<Value> try_apply(const OpDef& op, std::vector<Value> operands, Attrs attrs = {});
  void output(std::string name, Value value);

  const std::string& name() const { return name_; }
  const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
  // Drops nodes that no output needs; declared inputs stay unless `drop_unused_inputs`.
  Graph build(bool drop_unused_inputs = false) &&;

 private:
  Value add_node(Node node);

  std::string name_;
  std::deque<Node> nodes_;  // a deque: references from Value::type() stay valid while it grows
  std::vector<NodeId> inputs_;
  std::vector<GraphOutput> outputs_;
  std::unordered_map<std::string, NodeId> input_index_;
  std::unordered_set<std::string> output_names_;
  std::unordered_multimap<size_t, NodeId> index_;  // node hash → id
};

// Rebuilds `nodes` of `graph` into `builder`, operand by operand; `mapped[id]` (by node id) is used
// where valid and filled otherwise. Returns the value of `id`. Inputs not mapped are declared.
Value import_node(Builder& builder, const Graph& graph, NodeId id, std::vector<Value>& mapped);

}  // namespace npu
