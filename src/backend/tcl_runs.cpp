// Runs of atoms: as long as a statement allows, as short as the inputs' names demand.
#include "backend/tcl_runs.h"

#include <algorithm>
#include <map>

namespace npu::tcl {
namespace {

// Cuts `order` at every boundary that `together` does not forbid.
template <class Together>
std::vector<Run> cut(const Atoms& order, const Together& together) {
  std::vector<Run> runs;
  for (const int leaf : order) {
    if (runs.empty() || !together(runs.back().back(), leaf)) runs.emplace_back();
    runs.back().push_back(leaf);
  }
  return runs;
}

class RunNamer {
 public:
  RunNamer(const Graph& graph, const Axes& axes, FunctionLayout& layout)
      : graph_(graph), axes_(axes), out_(layout) {
    for (const Layout& dims : axes.layouts) {
      for (const Atoms& dim : dims) {
        for (size_t i = 1; i < dim.size(); ++i) one_dimension_.emplace(dim[i - 1], dim[i]);
      }
    }
  }

  std::optional<Error> run() {
    while (true) {
      for (Statement& s : out_.statements) segment(s);
      declare_inputs();
      const std::optional<Missing> missing = first_missing();
      if (!missing) return std::nullopt;
      if (fixed_.contains(missing->run)) return broken(*missing);
      std::optional<Run> given_up = missing->run;
      if (missing->run.size() == 1) given_up = least_used_with(missing->run.front());
      if (!given_up || !banned_.insert(*given_up).second) return broken(*missing);
    }
  }

 private:
  struct Missing {
    Run run;
    NodeId node;
  };

  Error broken(const Missing& missing) const {
    const Node& node = graph_.node(missing.node);
    int64_t size = 1;
    for (const int leaf : missing.run) size *= axes_.table.size(leaf);
    return {ErrorKind::kBadInput,
            "%" + std::to_string(missing.node) + " " +
                (node.is_input() ? "input '" + node.name + "'" : std::string(node.op->name)),
            "an axis of size " + std::to_string(size) +
                " occurs in no input, and TCL knows sizes from inputs only",
            node.type.text(), ""};
  }

  // Of the longer names that an input would have to give up for this atom, the one that products
  // and other statements need least.
  std::optional<Run> least_used_with(int leaf) const {
    std::map<Run, std::pair<int, int>> uses;
    for (const Statement& s : out_.statements) {
      std::set<Run> runs;
      for (const TensorUse& use : s.uses) runs.insert(use.axes.begin(), use.axes.end());
      for (const Run& run : runs) {
        if (run.size() == 1 || std::find(run.begin(), run.end(), leaf) == run.end()) continue;
        uses[run].first += s.block != nullptr && s.block->contracts;
        ++uses[run].second;
      }
    }
    std::optional<Run> least;
    for (const auto& [run, count] : uses) {
      if (fixed_.contains(run) || (least && uses.at(*least) <= count)) continue;
      least = run;
    }
    return least;
  }

  // The runs of a statement: neighbours wherever it has them, and parts of one dimension somewhere
  // in the graph.
  void segment(Statement& s) {
    std::vector<Atoms> orders;
    for (const TensorUse& use : s.uses) {
      orders.push_back(renamed(out_.tensors[use.tensor].order, use.renaming));
    }
    orders.push_back(out_.tensors[s.result].order);
    if (s.block != nullptr) add_reduced(*s.block, orders);
    const bool view = s.kind == Statement::Kind::kSlice || s.kind == Statement::Kind::kConcat;
    std::vector<std::vector<Run>> runs = view ? runs_of_view(s, orders) : runs_of_block(orders);
    for (size_t i = 0; i < s.uses.size(); ++i) s.uses[i].axes = std::move(runs[i]);
    out_.tensors[s.result].axes = std::move(runs[s.uses.size()]);
  }

  // What is summed away never shares a name with what stays.
  static void add_reduced(const Block& block, std::vector<Atoms>& orders) {
    for (const Step& step : block.steps) {
      if (step.reduced.empty()) continue;
      Atoms in_order;
      for (const int leaf : orders.front()) {
        const auto found = std::find(step.reduced.begin(), step.reduced.end(), leaf);
        if (found != step.reduced.end()) in_order.push_back(leaf);
      }
      orders.push_back(std::move(in_order));
      return;  // all reductions of a block are over the same axes
    }
  }

  std::vector<std::vector<Run>> runs_of_block(const std::vector<Atoms>& orders) const {
    std::map<int, int> next, previous;  // -1: not the same everywhere, or none
    const auto agree = [](std::map<int, int>& map, int leaf, int neighbour) {
      const auto [at, added] = map.emplace(leaf, neighbour);
      if (!added && at->second != neighbour) at->second = -1;
    };
    for (const Atoms& order : orders) {
      for (size_t i = 0; i < order.size(); ++i) {
        agree(next, order[i], i + 1 < order.size() ? order[i + 1] : -1);
        agree(previous, order[i], i > 0 ? order[i - 1] : -1);
      }
    }
    const auto together = [&](int a, int b) {
      return next.at(a) == b && previous.at(b) == a && one_dimension_.contains({a, b});
    };
    std::vector<std::vector<Run>> out;
    for (const Atoms& order : orders) out.push_back(allowed(cut(order, together)));
    return out;
  }

  // The cut or joined axis is one name; the others go as the graph's dimensions go.
  std::vector<std::vector<Run>> runs_of_view(const Statement& s, const std::vector<Atoms>& orders) {
    std::map<int, int> dimension;
    const Layout& dims = axes_.layouts[static_cast<size_t>(out_.tensors[s.result].node)];
    for (size_t d = 0; d < dims.size(); ++d) {
      for (const int leaf : dims[d]) dimension[leaf] = static_cast<int>(d);
    }
    std::vector<std::vector<Run>> out;
    for (size_t i = 0; i < orders.size(); ++i) {
      const bool result = i == s.uses.size();
      const bool slice = s.kind == Statement::Kind::kSlice;
      const Run& cut_axis =
          slice ? (result ? s.pieces.front() : s.whole) : (result ? s.whole : s.pieces[i]);
      const auto part = [&](int leaf) {
        return std::find(cut_axis.begin(), cut_axis.end(), leaf) != cut_axis.end();
      };
      std::vector<Run> runs = cut(orders[i], [&](int a, int b) {
        if (part(a) || part(b)) return part(a) && part(b);
        const auto da = dimension.find(a), db = dimension.find(b);
        return da != dimension.end() && db != dimension.end() && da->second == db->second;
      });
      std::vector<Run> kept;
      for (Run& run : runs) {
        const std::vector<Run> pieces =
            part(run.front()) ? std::vector<Run>{run} : allowed(std::vector<Run>{run});
        kept.insert(kept.end(), pieces.begin(), pieces.end());
      }
      out.push_back(std::move(kept));
    }
    return out;
  }

  std::vector<Run> allowed(const std::vector<Run>& runs) const {
    std::vector<Run> out;
    for (const Run& run : runs) {
      if (!banned_.contains(run)) {
        out.push_back(run);
        continue;
      }
      for (const int leaf : run) out.push_back({leaf});
    }
    return out;
  }

  // Every name that a statement uses, with the node that it is used for, in order.
  std::vector<Missing> needed() const {
    std::vector<Missing> all;
    std::set<Run> seen;
    const auto add = [&](const std::vector<Run>& runs, NodeId node) {
      for (const Run& run : runs) {
        if (seen.insert(run).second) all.push_back({run, node});
      }
    };
    for (const Statement& s : out_.statements) {
      const NodeId node = out_.tensors[s.result].node;
      for (const TensorUse& use : s.uses) add(use.axes, node);
      add(out_.tensors[s.result].axes, node);
    }
    return all;
  }

  void count(const std::vector<Run>& runs, int by) {
    for (const Run& run : runs) given_[run] += by;
  }

  // As its first reader sees it.
  std::vector<Run> default_form(size_t tensor) const {
    for (const Statement& s : out_.statements) {
      for (const TensorUse& use : s.uses) {
        if (use.tensor == tensor && use.renaming.empty()) return use.axes;
      }
    }
    std::vector<Run> form;
    for (const int leaf : out_.tensors[tensor].order) form.push_back({leaf});
    return form;
  }

  void declare_inputs() {
    given_.clear();
    for (size_t t = 0; t < out_.tensors.size(); ++t) {
      if (!out_.tensors[t].is_input) continue;
      out_.tensors[t].axes = default_form(t);
      count(out_.tensors[t].axes, 1);
    }
    std::set<Run> wanted;
    for (const Missing& m : needed()) wanted.insert(m.run);
    for (const bool single : {true, false}) {
      for (const Missing& m : needed()) {
        if ((m.run.size() == 1) != single || given_[m.run] > 0) continue;
        for (const size_t t : inputs_by_size()) {
          if (redeclare(out_.tensors[t], m.run, wanted)) break;
        }
      }
    }
  }

  // A small one costs least to be seen under two names.
  std::vector<size_t> inputs_by_size() const {
    std::vector<std::pair<int64_t, size_t>> sized;
    for (size_t t = 0; t < out_.tensors.size(); ++t) {
      if (!out_.tensors[t].is_input) continue;
      sized.emplace_back(graph_.node(out_.tensors[t].node).type.bytes(), t);
    }
    std::sort(sized.begin(), sized.end());
    std::vector<size_t> inputs;
    for (const auto& [bytes, t] : sized) inputs.push_back(t);
    return inputs;
  }

  // Declares the input so that `run` is one of its axes, unless a name that is needed would be
  // lost.
  bool redeclare(StoredTensor& tensor, const Run& run, const std::set<Run>& wanted) {
    const auto at = std::search(tensor.order.begin(), tensor.order.end(), run.begin(), run.end());
    if (at == tensor.order.end()) return false;
    std::vector<Run> form;
    for (const Run& old : tensor.axes) {
      const bool broken = std::any_of(old.begin(), old.end(), [&](int leaf) {
        return std::find(run.begin(), run.end(), leaf) != run.end();
      });
      if (!broken) {
        form.push_back(old);
        continue;
      }
      for (size_t i = 0; i < old.size();) {
        Run piece = longest_wanted(old, i, run, wanted);
        i += piece.size();
        form.push_back(std::move(piece));
      }
    }
    join_pieces(form, run);
    for (const Run& old : tensor.axes) {
      const bool kept = std::find(form.begin(), form.end(), old) != form.end();
      if (!kept && wanted.contains(old) && given_[old] == 1) return false;
    }
    count(tensor.axes, -1);
    count(form, 1);
    tensor.axes = std::move(form);
    return true;
  }

  // From atom i of a name that is given up: the longest other name that is needed, or one atom.
  static Run longest_wanted(const Run& old, size_t i, const Run& run, const std::set<Run>& wanted) {
    Run best = {old[i]};
    Run piece;
    for (size_t end = i; end < old.size() && !(i == 0 && end + 1 == old.size()); ++end) {
      piece.push_back(old[end]);
      const bool enters = end > i && old[end] == run.front();
      if (enters || (piece.front() == run.front() && piece != run)) {
        if (enters) break;
        continue;
      }
      if (piece == run || wanted.contains(piece)) best = piece;
    }
    return best;
  }

  // `run` as one piece where it lay across several.
  static void join_pieces(std::vector<Run>& form, const Run& run) {
    std::vector<Run> out;
    for (Run& piece : form) {
      const bool inside = std::find(run.begin() + 1, run.end(), piece.front()) != run.end();
      if (inside && !out.empty()) {
        out.back().insert(out.back().end(), piece.begin(), piece.end());
      } else {
        out.push_back(std::move(piece));
      }
    }
    form = std::move(out);
  }

  std::optional<Missing> first_missing() {
    for (const Missing& m : needed()) {
      if (given_[m.run] <= 0) return m;
    }
    return std::nullopt;
  }

  const Graph& graph_;
  const Axes& axes_;
  FunctionLayout& out_;
  std::set<std::pair<int, int>> one_dimension_;
  std::set<Run> banned_;
  std::set<Run> fixed_;  // the axes of views, which must be one name
  std::map<Run, int> given_;
};

}  // namespace

std::optional<Error> name_runs(const Graph& graph, const Axes& axes, FunctionLayout& layout) {
  return RunNamer(graph, axes, layout).run();
}

}  // namespace npu::tcl
