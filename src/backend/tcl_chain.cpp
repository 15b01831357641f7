// Linearises a cluster of nodes into steps. Where a branch starts that does not use the value just
// before it, two steps go over: p − p, which is 0 where p is finite (else NaN), plus the branch's
// first operand. Steps cost next to nothing; another block costs its reads and writes.
#include "backend/tcl_chain.h"

#include <algorithm>
#include <map>

#include "backend/tcl_ops.h"

namespace npu::tcl {
namespace {

using Leaves = std::set<int>;

Leaves leaves_of(const Axes& axes, const Use& use) {
  const Atoms atoms = renamed(axes.atoms_of(use.node), use.renaming);
  return {atoms.begin(), atoms.end()};
}

class ChainBuilder {
 public:
  ChainBuilder(const ChainRequest& request, NodeId main, const Renaming* main_renaming)
      : r_(request), graph_(*request.graph) {
    block_.result = request.result;
    if (r_.contraction >= 0) {
      block_.contracts = true;
      block_.contraction = r_.contraction;
      for (size_t i = 0; i < 2; ++i) add_read(r_.contraction, i, /*shared=*/false);
      block_.steps.push_back({"dpe", {}, {}});
      const Atoms product = r_.axes->atoms_of(r_.contraction);
      shapes_.push_back({product.begin(), product.end()});
      done_[r_.contraction] = step(0);
    } else if (main >= 0) {
      block_.reads.push_back({main, main_renaming ? *main_renaming : Renaming{}});
    }
  }

  // Empty when every rule is kept.
  std::string build() {
    const Operand last = emit(r_.result, /*top=*/true);
    if (!problem_.empty()) return problem_;
    const Atoms wanted = r_.axes->atoms_of(r_.result);
    if (shape(last) != Leaves(wanted.begin(), wanted.end())) {
      return "a small operand would be repeated in the result";
    }
    if (last.kind == Operand::Kind::kRead && !block_.steps.empty()) return "an empty block";
    return problem_;
  }

  Block take() { return std::move(block_); }
  size_t num_steps() const { return block_.steps.size(); }
  NodeId blocking() const { return blocking_; }

 private:
  static Operand step(size_t index) { return {Operand::Kind::kStep, static_cast<int>(index), 0}; }

  Operand add_read(NodeId user, size_t operand, bool shared = true) {
    const NodeId node = graph_.node(user).inputs[operand];
    Use use{storage_of(graph_, node), {}};
    if (const Renaming* renaming = r_.axes->renaming(user, operand)) use.renaming = *renaming;
    return add_use(std::move(use), shared);
  }

  Operand add_use(Use use, bool shared = true) {
    for (size_t i = 0; shared && i < block_.reads.size(); ++i) {
      if (block_.contracts && i < 2) continue;  // what is contracted is not read again
      if (block_.reads[i] == use) return {Operand::Kind::kRead, static_cast<int>(i), 0};
    }
    block_.reads.push_back(std::move(use));
    return {Operand::Kind::kRead, static_cast<int>(block_.reads.size()) - 1, 0};
  }

  Leaves shape(const Operand& operand) const {
    if (operand.kind == Operand::Kind::kConstant) return {};
    if (operand.kind == Operand::Kind::kStep) return shapes_[static_cast<size_t>(operand.index)];
    return leaves_of(*r_.axes, block_.reads[static_cast<size_t>(operand.index)]);
  }

  Operand push(std::string op, std::vector<Operand> operands, Atoms reduced = {}) {
    Leaves out;
    for (const Operand& o : operands) out.merge(shape(o));
    for (const int leaf : reduced) out.erase(leaf);
    shapes_.push_back(std::move(out));
    block_.steps.push_back({std::move(op), std::move(operands), std::move(reduced)});
    return step(block_.steps.size() - 1);
  }

  // What the next step must use.
  Operand mainstream() const {
    return block_.steps.empty() ? Operand{} : step(block_.steps.size() - 1);
  }

  // `value` as the result just before the next step.
  Operand brought(const Operand& value) {
    const Operand before = mainstream();
    if (value == before) return value;
    if (block_.contracts) note("a second branch after a contraction");
    const Operand zero = push("-", {before, before});
    return push("+", {zero, value});
  }

  void note(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }

  // How much there is still to compute under a node: the longer branch goes first.
  size_t weight(NodeId id) const {
    std::set<NodeId> left;
    count(id, left);
    return left.size();
  }

  void count(NodeId id, std::set<NodeId>& left) const {
    if (done_.contains(id) || stored(id) || !left.insert(id).second) return;
    for (const NodeId in : graph_.node(id).inputs) count(storage_of(graph_, in), left);
  }

  bool stored(NodeId id) const {
    return graph_.node(id).is_input() || (*r_.stored)[static_cast<size_t>(id)];
  }

  Operand operand(NodeId user, size_t index) {
    const NodeId id = storage_of(graph_, graph_.node(user).inputs[index]);
    if (const std::optional<float> value = constant_value(graph_, id)) {
      return {Operand::Kind::kConstant, 0, *value};
    }
    if (const auto found = done_.find(id); found != done_.end()) return found->second;
    if (stored(id)) return add_read(user, index);
    return emit(id, /*top=*/false);
  }

  Operand emit(NodeId id, bool top) {
    const Node& node = graph_.node(id);
    if (!top || id != r_.contraction) {
      if (const auto found = done_.find(id); found != done_.end()) return found->second;
    }
    const VectorOp* op = vector_op(node.op->name);
    if (op == nullptr) {
      note("no vector step for " + std::string(node.op->name));
      return mainstream();
    }
    const Operand result = op->binary ? emit_binary(id, *op) : emit_unary(id, *op);
    done_[id] = result;
    return result;
  }

  Operand emit_unary(NodeId id, const VectorOp& op) {
    const Node& node = graph_.node(id);
    Operand x = operand(id, 0);
    if (op.steps.empty()) return x;  // a rounding: the end of the block does it
    x = brought(x);
    if (node.op->traits.reduction) return emit_reduction(id, op, x);
    for (const VectorStep& s : op.steps) {
      const Operand number{Operand::Kind::kConstant, 0, s.number};
      if (s.form == VectorStep::Form::kUnary) x = push(s.op, {x});
      if (s.form == VectorStep::Form::kNumberLeft) x = push(s.op, {number, x});
      if (s.form == VectorStep::Form::kNumberRight) x = push(s.op, {x, number});
    }
    return x;
  }

  Operand emit_reduction(NodeId id, const VectorOp& op, const Operand& x) {
    if (block_.contracts) note("a reduction after a contraction");
    const Node& node = graph_.node(id);
    Atoms reduced;
    for (const int64_t axis : node.attrs.integers("axes")) {
      const Atoms& dim =
          r_.axes->layouts[static_cast<size_t>(node.inputs[0])][static_cast<size_t>(axis)];
      reduced.insert(reduced.end(), dim.begin(), dim.end());
    }
    const Leaves set(reduced.begin(), reduced.end());
    if (!reduced_.empty() && reduced_ != set) {
      note("reductions over different axes");
      blocking_ = id;
    }
    reduced_ = set;
    return push(op.steps.front().op, {x}, reduced);
  }

  Operand emit_binary(NodeId id, const VectorOp& op) {
    const Node& node = graph_.node(id);
    const NodeId left = storage_of(graph_, node.inputs[0]);
    const NodeId right = storage_of(graph_, node.inputs[1]);
    Operand a, b;
    if (weight(right) > weight(left)) {
      b = operand(id, 1);
      a = operand(id, 0);
    } else {
      a = operand(id, 0);
      b = operand(id, 1);
    }
    const Operand before = mainstream();
    if (a != before && b != before) {
      if (a.kind == Operand::Kind::kConstant) {
        b = brought(b);
      } else {
        a = brought(a);
      }
    }
    return push(op.steps.front().op, {a, b});
  }

  const ChainRequest& r_;
  const Graph& graph_;
  Block block_;
  std::vector<Leaves> shapes_;
  std::map<NodeId, Operand> done_;
  Leaves reduced_;
  std::string problem_;
  NodeId blocking_ = -1;
};

void collect(const ChainRequest& r, NodeId id, Cluster& out) {
  if (id == r.contraction) return;
  const Node& node = r.graph->node(id);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const NodeId in = storage_of(*r.graph, node.inputs[i]);
    if (constant_value(*r.graph, in)) continue;
    if (!r.graph->node(in).is_input() && !(*r.stored)[static_cast<size_t>(in)]) {
      if (out.inner.insert(in).second) collect(r, in, out);
      continue;
    }
    Use use{in, {}};
    if (const Renaming* renaming = r.axes->renaming(id, i)) use.renaming = *renaming;
    if (std::find(out.reads.begin(), out.reads.end(), use) == out.reads.end()) {
      out.reads.push_back(std::move(use));
    }
  }
}

// After a contraction tensors come first, then numbers and unary steps.
bool follows_contraction(const Block& block) {
  bool numbers = false;
  for (size_t i = 1; i < block.steps.size(); ++i) {
    bool tensor = false;
    for (const Operand& o : block.steps[i].operands) tensor |= o.kind == Operand::Kind::kRead;
    if (tensor && numbers) return false;
    numbers |= !tensor;
  }
  return true;
}

}  // namespace

Cluster cluster_of(const ChainRequest& request) {
  Cluster cluster;
  collect(request, request.result, cluster);
  return cluster;
}

Chain make_chain(const ChainRequest& request) {
  const std::vector<Use> uses = cluster_of(request).reads;
  Chain chain;
  if (request.contraction >= 0) {
    ChainBuilder builder(request, -1, nullptr);
    chain.problem = request.result == request.contraction ? "" : builder.build();
    Block block = builder.take();
    if (chain.problem.empty() && !follows_contraction(block)) {
      chain.problem = "a tensor after a number behind a contraction";
    }
    if (chain.problem.empty()) chain.block = std::move(block);
    return chain;
  }
  Leaves space;
  for (const Use& use : uses) space.merge(leaves_of(*request.axes, use));
  chain.problem = "no operand has all axes of the block";
  size_t best = 0;
  for (const Use& use : uses) {
    if (leaves_of(*request.axes, use) != space) continue;
    ChainBuilder builder(request, use.node, &use.renaming);
    const std::string problem = builder.build();
    if (!problem.empty()) {
      if (!chain.block) {
        chain.problem = problem;
        chain.blocking = builder.blocking();
      }
      continue;
    }
    if (chain.block && builder.num_steps() >= best) continue;
    best = builder.num_steps();
    chain.block = builder.take();
    chain.problem.clear();
  }
  return chain;
}

}  // namespace npu::tcl
