// Merges loops over the same rows into groups and orders the groups.
#include "backend/cpu_fuse.h"

#include <algorithm>
#include <set>

namespace npu::cpu {
namespace {

// A set of step numbers. Dense, since closures over a graph are.
class StepSet {
 public:
  explicit StepSet(size_t steps) : words_((steps + 63) / 64) {}
  void insert(size_t i) { words_[i / 64] |= uint64_t{1} << (i % 64); }
  bool contains(size_t i) const { return (words_[i / 64] >> (i % 64) & 1) != 0; }
  void unite(const StepSet& other) {
    for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  }

 private:
  std::vector<uint64_t> words_;
};

class Fuser {
 public:
  Fuser(const Graph& graph, const Values& values) : graph_(graph), values_(values) {
    number_steps();
    const size_t steps = nodes_.size();
    leader_.resize(steps);
    for (size_t s = 0; s < steps; ++s) leader_[s] = s;
    before_.assign(steps, StepSet(steps));
    through_memory_.assign(steps, StepSet(steps));
    direct_.assign(steps, {});
    for (size_t s = 0; s < steps; ++s) connect(s);
  }

  Groups run() {
    for (size_t i = 0; i < graph_.nodes().size(); ++i) {
      const NodeId id = static_cast<NodeId>(i);
      if (!fusable(id)) continue;
      for (const NodeId operand : graph_.node(id).inputs) {
        const NodeId root = register_root(graph_, values_, operand);
        if (root >= 0 && fusable(root)) try_merge(find(step(id)), find(step(root)));
      }
    }
    return in_order();
  }

 private:
  const Place& place(NodeId id) const { return values_.of[static_cast<size_t>(id)]; }
  size_t step(NodeId id) const { return static_cast<size_t>(step_of_[static_cast<size_t>(id)]); }
  size_t find(size_t s) {
    while (leader_[s] != s) s = leader_[s] = leader_[leader_[s]];  // shortens the way
    return s;
  }

  // Constants become numbers in the loops that read them; copies choose their own rows.
  bool fusable(NodeId id) const {
    return place(id).role == Role::kLoop && !place(id).copied &&
           graph_.node(id).op->name != "constant";
  }

  void number_steps() {
    step_of_.assign(graph_.nodes().size(), -1);
    for (size_t i = 0; i < graph_.nodes().size(); ++i) {
      const Role role = values_.of[i].role;
      if (role != Role::kLoop && role != Role::kGemm && role != Role::kKernel) continue;
      step_of_[i] = static_cast<int>(nodes_.size());
      nodes_.push_back({static_cast<NodeId>(i)});
    }
  }

  // What step `s` reads: operands of its node, or of its folded product.
  std::vector<NodeId> operands(size_t s) const {
    const NodeId id = nodes_[s][0];
    if (place(id).gemm < 0) return graph_.node(id).inputs;
    const GemmSpec& spec = values_.gemms[static_cast<size_t>(place(id).gemm)];
    std::vector<NodeId> reads = graph_.node(spec.product).inputs;
    if (spec.alpha_node >= 0) reads.push_back(spec.alpha_node);
    if (spec.accumulate >= 0) reads.push_back(spec.accumulate);
    return reads;
  }

  void connect(size_t s) {
    const NodeId id = nodes_[s][0];
    for (const NodeId operand : operands(s)) {
      if (fusable(id) && constant_behind(graph_, operand) != nullptr) continue;
      const NodeId root = place(operand).root;
      if (place(root).role == Role::kInput) continue;
      const size_t producer = step(root);
      direct_[s].push_back(producer);
      before_[s].insert(producer);
      before_[s].unite(before_[producer]);  // operands come first, so this is closed
      if (!fuses_through(id, operand)) through_memory_[s].insert(producer);
    }
  }

  bool fuses_through(NodeId id, NodeId operand) const {
    const NodeId root = register_root(graph_, values_, operand);
    if (root < 0 || !fusable(root) || !fusable(id)) return false;
    const Node& node = graph_.node(id);
    if (node.op->name == "one_hot") return false;  // its index runs along rows
    return row_count(graph_.node(root).type) == row_count(node.type);
  }

  bool lies_between(size_t first, size_t last) const {
    for (size_t t = 0; t < nodes_.size(); ++t) {
      if (leader_[t] != t || t == first || t == last) continue;
      if (before_[last].contains(t) && before_[t].contains(first)) return true;
    }
    return false;
  }

  void try_merge(size_t a, size_t b) {
    if (a == b) return;
    if (row_count(graph_.node(nodes_[a][0]).type) != row_count(graph_.node(nodes_[b][0]).type))
      return;
    if (through_memory_[a].contains(b) || through_memory_[b].contains(a)) return;
    if (lies_between(a, b) || lies_between(b, a)) return;
    leader_[b] = a;
    nodes_[a].insert(nodes_[a].end(), nodes_[b].begin(), nodes_[b].end());
    direct_[a].insert(direct_[a].end(), direct_[b].begin(), direct_[b].end());
    before_[a].unite(before_[b]);
    through_memory_[a].unite(through_memory_[b]);
    // Whoever needs one of the two now needs both.
    for (size_t t = 0; t < before_.size(); ++t) {
      if (leader_[t] != t || t == a) continue;
      if (before_[t].contains(a) || before_[t].contains(b)) {
        before_[t].unite(before_[a]);
        before_[t].insert(a);
        before_[t].insert(b);
      }
      if (through_memory_[t].contains(a) || through_memory_[t].contains(b)) {
        through_memory_[t].insert(a);
        through_memory_[t].insert(b);
      }
    }
  }

  // Ready steps in graph order, but first those that read what was just written: it is in cache,
  // and they may share its stage.
  Groups in_order() {
    Groups groups;
    groups.of.assign(graph_.nodes().size(), -1);
    std::vector<std::set<size_t>> readers(nodes_.size());
    std::vector<size_t> waiting(nodes_.size(), 0);
    std::set<std::pair<NodeId, size_t>> ready;
    for (size_t s = 0; s < nodes_.size(); ++s) {
      if (find(s) != s) continue;
      std::set<size_t> needs;
      for (const size_t d : direct_[s]) needs.insert(find(d));
      needs.erase(s);
      for (const size_t d : needs) readers[d].insert(s);
      waiting[s] = needs.size();
      std::sort(nodes_[s].begin(), nodes_[s].end());
      if (needs.empty()) ready.insert({nodes_[s][0], s});
    }
    const std::set<size_t> none;
    const std::set<size_t>* preferred = &none;
    while (!ready.empty()) {
      auto next = std::find_if(ready.begin(), ready.end(),
                               [&](const auto& r) { return preferred->contains(r.second); });
      if (next == ready.end()) next = ready.begin();
      const size_t s = next->second;
      ready.erase(next);
      for (const NodeId id : nodes_[s]) {
        groups.of[static_cast<size_t>(id)] = static_cast<int>(groups.in_order.size());
      }
      groups.in_order.push_back({place(nodes_[s][0]).role, nodes_[s]});
      preferred = &readers[s];
      for (const size_t reader : readers[s]) {
        if (--waiting[reader] == 0) ready.insert({nodes_[reader][0], reader});
      }
    }
    return groups;
  }

  const Graph& graph_;
  const Values& values_;
  std::vector<int> step_of_;
  std::vector<std::vector<NodeId>> nodes_;  // by step; of merged steps only the leader's counts
  std::vector<size_t> leader_;
  std::vector<StepSet> before_;          // all steps that must end first
  std::vector<StepSet> through_memory_;  // steps of which a value is read in another row order
  std::vector<std::vector<size_t>> direct_;
};

}  // namespace

NodeId register_root(const Graph& graph, const Values& values, NodeId id) {
  while (values.of[static_cast<size_t>(id)].role == Role::kView) {
    const Node& node = graph.node(id);
    if (!is_register_alias(graph, node)) return -1;
    id = node.inputs[0];
  }
  return values.of[static_cast<size_t>(id)].role == Role::kLoop ? id : -1;
}

Groups fuse(const Graph& graph, const Values& values) { return Fuser(graph, values).run(); }

}  // namespace npu::cpu
