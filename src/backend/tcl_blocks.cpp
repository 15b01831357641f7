// Block formation: which values are stored, and the blocks and views that write them.
#include "backend/tcl_blocks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "backend/tcl_chain.h"
#include "backend/tcl_ops.h"

namespace npu::tcl {
namespace {

bool is(const Node& node, std::string_view name) {
  return !node.is_input() && node.op->name == name;
}

bool reduces_nothing(const Graph& graph, const Node& node) {
  if (!node.op->traits.reduction) return false;
  const Shape& shape = graph.node(node.inputs[0]).type.shape;
  for (const int64_t axis : node.attrs.integers("axes")) {
    if (shape[static_cast<size_t>(axis)] != 1) return false;
  }
  return true;
}

// The same bytes under other dimensions, or the same values in a wider type.
bool is_alias(const Graph& graph, const Node& node) {
  if (node.is_input() || node.inputs.empty()) return false;
  for (const char* name : {"reshape", "transpose", "broadcast", "stop_gradient"}) {
    if (node.op->name == name) return true;
  }
  if (node.op->name == "concat" && node.inputs.size() == 1) return true;
  const DType from = graph.node(node.inputs[0]).type.dtype;
  if (node.op->name == "convert") return node.type.dtype == DType::kF32 || node.type.dtype == from;
  return reduces_nothing(graph, node);
}

bool is_view(const Node& node) {
  return is(node, "slice") || (is(node, "concat") && node.inputs.size() > 1);
}

// x · 2ⁿ moves no digit.
bool scales_by_power_of_two(const Graph& graph, const Node& node) {
  if (node.op->name != "mul") return false;
  for (const NodeId in : node.inputs) {
    const std::optional<float> value = constant_value(graph, in);
    if (value && *value != 0 && (std::bit_cast<uint32_t>(*value) & 0x7fffffu) == 0) return true;
  }
  return false;
}

std::string where_of(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  return "%" + std::to_string(id) + " " +
         (node.is_input() ? "input '" + node.name + "'" : std::string(node.op->name));
}

class Former {
 public:
  Former(const Graph& graph, const Axes& axes)
      : graph_(graph), axes_(axes), stored_(graph.nodes().size()), users_(graph.nodes().size()) {}

  Result<std::vector<Item>> run() {
    if (auto error = mark()) return *error;
    while (true) {
      items_.clear();
      const Outcome outcome = place();
      if (outcome.error) return *outcome.error;
      if (outcome.store < 0) break;
      stored_[static_cast<size_t>(outcome.store)] = true;
    }
    absorb_contractions();
    return std::move(items_);
  }

 private:
  struct Outcome {
    NodeId store = -1;  // a node to be stored, after which placing starts again
    std::optional<Error> error;
  };

  NodeId storage(NodeId id) const { return storage_of(graph_, id); }
  bool is_stored(NodeId id) const { return stored_[static_cast<size_t>(id)]; }
  ChainRequest request(NodeId id, NodeId contraction = -1) const {
    return {&graph_, &axes_, id, &stored_, contraction};
  }
  Error broken(NodeId id, const std::string& what) const {
    return {ErrorKind::kBadInput, where_of(graph_, id), what, graph_.node(id).type.text(), ""};
  }

  // Marks what must be written whatever the blocks are, and who reads what.
  std::optional<Error> mark() {
    std::vector<NodeId> pending;
    std::vector<bool> seen(stored_.size());
    const auto need = [&](NodeId id) {
      if (seen[static_cast<size_t>(id)]) return;
      seen[static_cast<size_t>(id)] = true;
      pending.push_back(id);
    };
    for (const GraphOutput& output : graph_.outputs()) {
      const NodeId id = storage(output.node);
      if (const auto reason = not_a_tensor(graph_, output.node)) {
        return broken(output.node, "an output is " + *reason);
      }
      stored_[static_cast<size_t>(id)] = true;
      need(id);
    }
    while (!pending.empty()) {
      const NodeId id = pending.back();
      pending.pop_back();
      const Node& node = graph_.node(id);
      if (const auto reason = unsupported_node(graph_, id)) return broken(id, *reason);
      const bool whole = is_view(node) || is(node, "matmul");
      if (whole || (!node.is_input() && rounds(graph_, id)))
        stored_[static_cast<size_t>(id)] = true;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const NodeId in = storage(node.inputs[i]);
        users_[static_cast<size_t>(in)].push_back(id);
        need(in);
        if (!whole && axes_.renaming(id, i) == nullptr) continue;
        if (const auto reason = not_a_tensor(graph_, node.inputs[i]); reason && whole) {
          return broken(id, "an operand is " + *reason);
        }
        stored_[static_cast<size_t>(in)] = true;
      }
    }
    live_ = std::move(seen);
    return std::nullopt;
  }

  Outcome place() {
    for (size_t i = 0; i < stored_.size(); ++i) {
      const auto id = static_cast<NodeId>(i);
      const Node& node = graph_.node(id);
      if (!live_[i] || !stored_[i] || node.is_input()) continue;
      if (is_view(node)) {
        items_.push_back({true, {}, make_view(id)});
      } else if (is(node, "matmul")) {
        items_.push_back({false, *make_chain(request(id, id)).block, {}});
      } else {
        Chain chain = make_chain(request(id));
        if (!chain.block) chain.block = outer_product(id);
        if (!chain.block) return to_store(id, chain);
        items_.push_back({false, std::move(*chain.block), {}});
      }
    }
    return {shared_value(), std::nullopt};
  }

  // A chain that cannot be: the value within it that must be written for the rest to be one.
  Outcome to_store(NodeId id, const Chain& chain) const {
    const std::set<NodeId> inner = cluster_of(request(id)).inner;
    if (chain.blocking >= 0 && inner.contains(chain.blocking)) return {chain.blocking, {}};
    for (const NodeId n : inner) {
      if (graph_.node(n).op->traits.reduction) return {n, {}};
    }
    const size_t axes = axes_.atoms_of(id).size();
    for (const NodeId n : inner) {
      if (axes_.atoms_of(n).size() < axes) return {n, {}};
    }
    if (!inner.empty()) return {*inner.rbegin(), {}};
    return {-1, broken(id, chain.problem)};
  }

  // One step over two reads that have all axes only between them.
  std::optional<Block> outer_product(NodeId id) const {
    const Cluster cluster = cluster_of(request(id));
    const VectorOp* op = vector_op(graph_.node(id).op->name);
    if (op == nullptr || !op->binary || !cluster.inner.empty() || cluster.reads.size() != 2) {
      return std::nullopt;
    }
    Block block;
    block.result = id;
    block.outer = true;
    block.reads = cluster.reads;
    block.steps.push_back(
        {op->steps.front().op, {{Operand::Kind::kRead, 0, 0}, {Operand::Kind::kRead, 1, 0}}, {}});
    return block;
  }

  View make_view(NodeId id) const {
    const Node& node = graph_.node(id);
    View view;
    view.result = id;
    view.joins = is(node, "concat");
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      Use use{storage(node.inputs[i]), {}};
      if (const Renaming* renaming = axes_.renaming(id, i)) use.renaming = *renaming;
      view.parts.push_back(std::move(use));
    }
    const Layout& result = axes_.layouts[static_cast<size_t>(id)];
    if (view.joins) {
      const auto dim = static_cast<size_t>(node.attrs.integer("axis"));
      view.whole = result[dim];
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const Atoms& piece = axes_.layouts[static_cast<size_t>(node.inputs[i])][dim];
        view.pieces.push_back(renamed(piece, view.parts[i].renaming));
      }
      return view;
    }
    const Layout& whole = axes_.layouts[static_cast<size_t>(node.inputs[0])];
    for (size_t d = 0; d < result.size(); ++d) {
      if (result[d] == whole[d]) continue;
      view.cuts.push_back({whole[d], result[d], node.attrs.integers("starts")[d]});
    }
    return view;
  }

  int64_t bytes(NodeId id) const {
    return num_elements(graph_.node(id).type.shape) *
           static_cast<int64_t>(dtype_bytes(graph_.node(id).type.dtype));
  }

  std::set<NodeId> nodes_read(NodeId id) const {
    std::set<NodeId> nodes;
    for (const Use& use : cluster_of(request(id)).reads) nodes.insert(use.node);
    return nodes;
  }

  // A value that several blocks compute for themselves, where one block that writes it would move
  // fewer bytes; or -1. A block of its own costs as much time as moving kBlockBytes.
  NodeId shared_value() {
    constexpr int64_t kBlockBytes = 1'800'000;
    std::map<NodeId, std::vector<NodeId>> computed_by;
    for (const Item& item : items_) {
      if (item.is_view) continue;
      const Block& block = item.block;
      if (block.contracts) continue;
      for (const NodeId n : cluster_of(request(block.result)).inner) {
        computed_by[n].push_back(block.result);
      }
    }
    for (const auto& [node, blocks] : computed_by) {
      if (blocks.size() < 2) continue;
      int64_t apart = 0, once = kBlockBytes;
      for (const NodeId n : nodes_read(node)) once += bytes(n);
      once += bytes(node) * static_cast<int64_t>(blocks.size() + 1);
      for (const NodeId block : blocks) {
        const std::set<NodeId> with = nodes_read(block);
        stored_[static_cast<size_t>(node)] = true;
        const std::set<NodeId> without = nodes_read(block);
        stored_[static_cast<size_t>(node)] = false;
        for (const NodeId n : with) {
          if (!without.contains(n)) apart += bytes(n);
        }
      }
      if (apart > once) return node;
    }
    return -1;
  }

  // The contraction's value goes on into the block of `result` and nowhere else.
  bool leads_only_to(NodeId contraction, NodeId result) const {
    for (NodeId n = contraction; n != result;) {
      const std::vector<NodeId>& users = users_[static_cast<size_t>(n)];
      if (users.size() != 1 || (n != contraction && is_stored(n))) return false;
      n = users.front();
    }
    return true;
  }

  bool is_output(NodeId id) const {
    return std::any_of(graph_.outputs().begin(), graph_.outputs().end(),
                       [&](const GraphOutput& o) { return storage(o.node) == id; });
  }

  void absorb_contractions() {
    std::set<NodeId> absorbed;
    for (Item& item : items_) {
      if (item.is_view || item.block.contracts) continue;
      std::vector<NodeId> read;
      for (const Use& use : item.block.reads) {
        // Under other names it is another tensor, which a product within the block is not.
        if (use.renaming.empty()) read.push_back(use.node);
      }
      std::sort(read.rbegin(), read.rend());
      for (const NodeId c : read) {
        if (!is(graph_.node(c), "matmul") || rounds(graph_, c) || is_output(c)) continue;
        if (!leads_only_to(c, item.block.result)) continue;
        Chain chain = make_chain(request(item.block.result, c));
        if (!chain.block) continue;
        item.block = std::move(*chain.block);
        absorbed.insert(c);
        break;
      }
    }
    std::erase_if(items_, [&](const Item& item) { return absorbed.contains(item.result()); });
  }

  const Graph& graph_;
  const Axes& axes_;
  std::vector<bool> stored_, live_;
  std::vector<std::vector<NodeId>> users_;
  std::vector<Item> items_;
};

}  // namespace

std::string Block::kind() const {
  if (contracts) return "EinsumByDpe";
  if (outer) return "EinsumByVe";
  for (const Step& step : steps) {
    if (!step.reduced.empty()) return "ReduceByVe";
  }
  return "Elementwise";
}

NodeId storage_of(const Graph& graph, NodeId id) {
  while (is_alias(graph, graph.node(id))) id = graph.node(id).inputs[0];
  return id;
}

std::optional<std::string> not_a_tensor(const Graph& graph, NodeId id) {
  while (is_alias(graph, graph.node(id))) {
    const Node& node = graph.node(id);
    id = node.inputs[0];
    if (node.op->name == "broadcast" && node.type.shape != graph.node(id).type.shape) {
      return "a repeated tensor, which no step makes";
    }
  }
  if (!constant_value(graph, id)) return std::nullopt;
  return "a constant, and TCL has numbers only in steps";
}

bool rounds(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.is_input() || node.type.dtype != DType::kBF16 || is_view(node) ||
      is_alias(graph, node) || node.inputs.empty()) {
    return false;
  }
  const VectorOp* op = vector_op(node.op->name);
  if (op != nullptr && op->exact) return false;
  return !scales_by_power_of_two(graph, node);
}

bool holds_bf16(const Graph& graph, NodeId id) {
  const NodeId stored = storage_of(graph, id);
  const Node& node = graph.node(stored);
  if (node.type.dtype == DType::kBF16) return true;
  if (node.is_input() || node.inputs.empty()) return false;
  const VectorOp* op = vector_op(node.op->name);
  if (!is_view(node) && (op == nullptr || !op->exact)) return false;
  return std::all_of(node.inputs.begin(), node.inputs.end(),
                     [&](NodeId in) { return holds_bf16(graph, in); });
}

std::optional<std::string> unsupported_node(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const auto number = [](DType d) { return d == DType::kF32 || d == DType::kBF16; };
  if (!number(node.type.dtype)) {
    return "TCL blocks compute with bf16 and f32, not " + std::string(dtype_name(node.type.dtype));
  }
  if (node.is_input()) return std::nullopt;
  const std::string_view name = node.op->name;
  for (const NodeId in : node.inputs) {
    const DType dtype = graph.node(in).type.dtype;
    if (number(dtype)) continue;
    return "TCL has no " + std::string(name) + " of " + std::string(dtype_name(dtype));
  }
  if (name == "constant") {
    if (std::isfinite(*constant_value(graph, id))) return std::nullopt;
    return "TCL has no number for " + std::to_string(*constant_value(graph, id));
  }
  if (name == "slice" || name == "concat") {
    for (const NodeId n : node.inputs) {
      for (size_t d = 0; d < node.type.shape.size(); ++d) {
        const int64_t size = graph.node(n).type.shape[d];
        if (size != node.type.shape[d] && std::min(size, node.type.shape[d]) == 1) {
          return "a " + std::string(name) + " of single elements has no axis to name";
        }
      }
    }
    return std::nullopt;
  }
  if (is_alias(graph, node) || name == "matmul" || vector_op(name) != nullptr) return std::nullopt;
  return "TCL has no step that does " + std::string(name);
}

Result<std::vector<Item>> form_blocks(const Graph& graph, const Axes& axes) {
  return Former(graph, axes).run();
}

}  // namespace npu::tcl
