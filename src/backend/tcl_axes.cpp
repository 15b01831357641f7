// Unification of dimensions over a graph, in the order of its nodes.
#include "backend/tcl_axes.h"

#include <algorithm>
#include <optional>
#include <string>

namespace npu::tcl {

Atoms flattened(const Layout& layout) {
  Atoms all;
  for (const Atoms& dim : layout) all.insert(all.end(), dim.begin(), dim.end());
  return all;
}

Atoms AxisTable::fresh(int64_t size) {
  if (size == 1) return {};
  atoms_.push_back({size, {}, {}});
  return {static_cast<int>(atoms_.size()) - 1};
}

Atoms AxisTable::copy_of(const Atoms& atoms) {
  Atoms copies;
  for (const int atom : leaves(atoms)) copies.push_back(fresh(size(atom)).front());
  keep_apart(copies);
  return copies;
}

Atoms AxisTable::leaves(const Atoms& atoms) const {
  Atoms out;
  for (const int atom : atoms) {
    const std::vector<int>& becomes = atoms_[static_cast<size_t>(atom)].becomes;
    if (becomes.empty()) {
      out.push_back(atom);
    } else {
      const Atoms inner = leaves(becomes);
      out.insert(out.end(), inner.begin(), inner.end());
    }
  }
  return out;
}

void AxisTable::split(int atom, int64_t outer) {
  const int64_t inner = size(atom) / outer;
  const Atoms halves = {fresh(outer).front(), fresh(inner).front()};
  const std::set<int> apart = atoms_[static_cast<size_t>(atom)].apart;
  atoms_[static_cast<size_t>(atom)].becomes = halves;
  for (const int half : halves) {
    atoms_[static_cast<size_t>(half)].apart = apart;
    for (const int other : apart) atoms_[static_cast<size_t>(other)].apart.insert(half);
  }
  keep_apart(halves);
}

void AxisTable::join(int from, int to) {
  const std::set<int> apart = atoms_[static_cast<size_t>(from)].apart;
  atoms_[static_cast<size_t>(from)].becomes = {to};
  for (const int other : apart) {
    atoms_[static_cast<size_t>(to)].apart.insert(other);
    atoms_[static_cast<size_t>(other)].apart.insert(to);
  }
}

bool AxisTable::keep_apart(const Atoms& atoms) {
  const Atoms all = leaves(atoms);
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (all[i] == all[j]) return false;
      atoms_[static_cast<size_t>(all[i])].apart.insert(all[j]);
      atoms_[static_cast<size_t>(all[j])].apart.insert(all[i]);
    }
  }
  return true;
}

bool AxisTable::distinct(const Atoms& atoms) const {
  Atoms all = leaves(atoms);
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) == all.end();
}

bool AxisTable::walk(const Atoms& a, const Atoms& b, bool joins) {
  for (size_t i = 0;; ++i) {
    const Atoms left = leaves(a), right = leaves(b);
    if (i == left.size() || i == right.size()) return left.size() == right.size();
    if (left[i] == right[i]) continue;
    const int64_t l = size(left[i]), r = size(right[i]);
    if (l != r) {
      const bool left_is_longer = l > r;
      if ((left_is_longer ? l % r : r % l) != 0) return false;
      split(left_is_longer ? left[i] : right[i], std::min(l, r));
      --i;  // the same place again, now of equal sizes
      continue;
    }
    if (!joins) continue;
    if (atoms_[static_cast<size_t>(left[i])].apart.contains(right[i])) return false;
    join(right[i], left[i]);
  }
}

bool AxisTable::unify(const Atoms& a, const Atoms& b) {
  if (leaves(a) == leaves(b)) return true;
  AxisTable trial = *this;
  if (!trial.walk(a, b, true)) return false;
  *this = std::move(trial);
  return true;
}

bool AxisTable::refine(const Atoms& a, const Atoms& b) { return walk(a, b, false); }

const Renaming* Axes::renaming(NodeId user, size_t operand) const {
  const auto found = renamings.find({user, operand});
  return found == renamings.end() ? nullptr : &found->second;
}

namespace {

// Layouts hold atoms as they were when their node was visited; the table knows what became of them.
class Namer {
 public:
  explicit Namer(const Graph& graph) : graph_(graph), layouts_(graph.nodes().size()) {}

  Result<Axes> run() {
    for (size_t i = 0; i < layouts_.size(); ++i) {
      const auto id = static_cast<NodeId>(i);
      if (std::optional<std::string> reason = visit(id)) {
        return broken(id, *reason);
      }
    }
    return finished();
  }

 private:
  using Broken = std::optional<std::string>;

  Error broken(NodeId id, const std::string& reason) const {
    const Node& node = graph_.node(id);
    const std::string op(node.is_input() ? "input" : node.op->name);
    return {ErrorKind::kBadInput, "%" + std::to_string(id) + " " + op, reason, node.type.text(),
            ""};
  }

  const Shape& shape(NodeId id) const { return graph_.node(id).type.shape; }
  Layout& layout(NodeId id) { return layouts_[static_cast<size_t>(id)]; }

  Layout fresh_layout(const Shape& dims) {
    Layout out;
    for (const int64_t size : dims) out.push_back(table_.fresh(size));
    table_.keep_apart(flattened(out));
    return out;
  }

  // One dimension of an operand under new names.
  Atoms renamed(NodeId user, size_t operand, const Atoms& dim) {
    const Atoms copy = table_.copy_of(dim);
    renames_.push_back({user, operand, dim, copy});
    return copy;
  }

  // Unifies the operand's dimensions with `into`; one that `into` lacks is taken over. A dimension
  // that cannot be the same (its axis already stands elsewhere in the result) gets other names.
  bool merge(Layout& into, NodeId user, size_t operand, int64_t skip = -1) {
    const Layout with = layout(graph_.node(user).inputs[operand]);
    for (size_t d = 0; d < with.size(); ++d) {
      if (static_cast<int64_t>(d) == skip || with[d].empty()) continue;
      if (into[d].empty()) {
        Atoms all = flattened(into);
        all.insert(all.end(), with[d].begin(), with[d].end());
        into[d] = table_.distinct(all) ? with[d] : renamed(user, operand, with[d]);
      } else if (!table_.unify(into[d], with[d])) {
        if (!table_.unify(into[d], renamed(user, operand, with[d]))) return false;
      }
      if (!table_.keep_apart(flattened(into))) return false;
    }
    return true;
  }

  Broken visit(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.is_input()) {
      layout(id) = fresh_layout(node.type.shape);
      return {};
    }
    const std::string_view name = node.op->name;
    if (node.inputs.empty()) {
      layout(id) = Layout(node.type.shape.size());  // a constant repeats along every axis
      return {};
    }
    if (name == "matmul") return visit_matmul(id);
    if (name == "reshape") return visit_reshape(id);
    if (name == "slice") return visit_slice(id);
    if (name == "concat") return visit_concat(id);
    const Layout first = layout(node.inputs[0]);
    if (name == "transpose") {
      Layout moved;
      for (const int64_t d : node.attrs.integers("perm")) {
        moved.push_back(first[static_cast<size_t>(d)]);
      }
      layout(id) = moved;
      return {};
    }
    if (name == "broadcast") {
      Layout grown = first;
      for (size_t d = 0; d < grown.size(); ++d) {
        if (shape(node.inputs[0])[d] == 1) grown[d] = table_.fresh(node.type.shape[d]);
      }
      table_.keep_apart(flattened(grown));
      layout(id) = grown;
      return {};
    }
    if (node.op->traits.reduction) {
      Layout kept = first;
      for (const int64_t axis : node.attrs.integers("axes")) kept[static_cast<size_t>(axis)] = {};
      layout(id) = kept;
      return {};
    }
    return visit_elementwise(id);
  }

  Broken visit_elementwise(NodeId id) {
    const Node& node = graph_.node(id);
    if (!node.op->traits.elementwise && node.op->name != "convert" &&
        node.op->name != "stop_gradient" && node.op->name != "select") {
      layout(id) = fresh_layout(node.type.shape);
      return {};
    }
    Layout result(node.type.shape.size());
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!merge(result, id, i)) return "the operands' dimensions have no common axes";
    }
    for (size_t d = 0; d < result.size(); ++d) {
      if (result[d].empty()) result[d] = table_.fresh(node.type.shape[d]);
    }
    table_.keep_apart(flattened(result));
    layout(id) = result;
    return {};
  }

  Broken visit_matmul(NodeId id) {
    const Node& node = graph_.node(id);
    const size_t rank = node.type.shape.size();
    const bool ta = node.attrs.integer("transpose_lhs", 0) != 0;
    const bool tb = node.attrs.integer("transpose_rhs", 0) != 0;
    const size_t lhs_k = ta ? rank - 2 : rank - 1, rhs_k = tb ? rank - 1 : rank - 2;
    const size_t lhs_m = 2 * rank - 3 - lhs_k, rhs_n = 2 * rank - 3 - rhs_k;
    const Layout lhs = layout(node.inputs[0]);
    const Layout rhs = layout(node.inputs[1]);
    for (size_t d = 0; d < rank; ++d) {
      if (d == rhs_n) continue;
      const Atoms& meets = d == rhs_k ? lhs[lhs_k] : lhs[d];
      if (table_.unify(meets, rhs[d])) continue;
      if (!table_.unify(meets, renamed(id, 1, rhs[d]))) return "the operands have no common axes";
    }
    Atoms all = flattened(lhs);
    all.insert(all.end(), rhs[rhs_n].begin(), rhs[rhs_n].end());
    const Atoms n = table_.distinct(all) ? rhs[rhs_n] : renamed(id, 1, rhs[rhs_n]);
    all = flattened(lhs);
    all.insert(all.end(), n.begin(), n.end());
    table_.keep_apart(all);
    Layout result = lhs;
    result[rank - 2] = lhs[lhs_m];
    result[rank - 1] = n;
    layout(id) = result;
    return {};
  }

  Broken visit_reshape(NodeId id) {
    const Node& node = graph_.node(id);
    Layout dims = fresh_layout(node.type.shape);
    if (!table_.unify(flattened(layout(node.inputs[0])), flattened(dims))) {
      return kNoCommonAxes;
    }
    layout(id) = dims;
    return {};
  }

  Broken visit_slice(NodeId id) {
    const Node& node = graph_.node(id);
    const std::vector<int64_t>& starts = node.attrs.integers("starts");
    Layout dims = layout(node.inputs[0]);
    for (size_t d = 0; d < dims.size(); ++d) {
      const int64_t whole = shape(node.inputs[0])[d], length = node.type.shape[d];
      if (length == whole) continue;
      const Atoms inner = table_.fresh(length);
      if (whole % length == 0 && starts[d] % length == 0) {
        // One of equal pieces: their axis is the inner one of two that make up the whole.
        Atoms both = table_.fresh(whole / length);
        both.insert(both.end(), inner.begin(), inner.end());
        table_.keep_apart(both);
        table_.unify(dims[d], both);
      }
      dims[d] = inner;
    }
    table_.keep_apart(flattened(dims));
    layout(id) = dims;
    return {};
  }

  Broken visit_concat(NodeId id) {
    const Node& node = graph_.node(id);
    const int64_t axis = node.attrs.integer("axis");
    const auto dim = static_cast<size_t>(axis);
    const auto equal_piece = [&](NodeId part) {
      return shape(part)[dim] == shape(node.inputs[0])[dim];
    };
    const bool equal = std::all_of(node.inputs.begin(), node.inputs.end(), equal_piece);
    Layout result = layout(node.inputs[0]);
    for (size_t i = 1; i < node.inputs.size(); ++i) {
      const int64_t skip = equal ? -1 : axis;
      if (!merge(result, id, i, skip)) return "the parts' dimensions have no common axes";
    }
    if (equal) {
      Atoms outer = table_.fresh(static_cast<int64_t>(node.inputs.size()));
      outer.insert(outer.end(), result[dim].begin(), result[dim].end());
      result[dim] = outer;
    } else {
      result[dim] = table_.fresh(node.type.shape[dim]);
    }
    table_.keep_apart(flattened(result));
    layout(id) = result;
    return {};
  }

  struct Rename {
    NodeId user;
    size_t operand;
    Atoms from, to;
  };

  Result<Axes> finished() {
    // Both names of a renamed axis must be split alike; a split may reach further renamings.
    for (bool changed = true; changed;) {
      changed = false;
      for (const Rename& r : renames_) {
        const size_t before = table_.leaves(r.from).size() + table_.leaves(r.to).size();
        if (!table_.refine(r.from, r.to)) {
          return broken(r.user, "two names of one axis do not divide alike");
        }
        changed |= table_.leaves(r.from).size() + table_.leaves(r.to).size() != before;
      }
    }
    Axes axes;
    for (const Rename& r : renames_) {
      const Atoms from = table_.leaves(r.from), to = table_.leaves(r.to);
      Renaming& renaming = axes.renamings[{r.user, r.operand}];
      for (size_t i = 0; i < from.size(); ++i) {
        if (from[i] != to[i]) renaming[from[i]] = to[i];
      }
    }
    for (Layout& dims : layouts_) {
      for (Atoms& dim : dims) dim = table_.leaves(dim);
    }
    axes.layouts = std::move(layouts_);
    axes.table = std::move(table_);
    return axes;
  }

  const Graph& graph_;
  AxisTable table_;
  std::vector<Layout> layouts_;
  std::vector<Rename> renames_;
};

}  // namespace

Atoms renamed(Atoms atoms, const Renaming& renaming) {
  for (int& leaf : atoms) {
    const auto found = renaming.find(leaf);
    if (found != renaming.end()) leaf = found->second;
  }
  return atoms;
}

Result<Axes> name_axes(const Graph& graph) { return Namer(graph).run(); }

}  // namespace npu::tcl
