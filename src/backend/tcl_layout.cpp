// Orders of axes in memory: chosen where a block writes, so that products see flat axes.
#include "backend/tcl_layout.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "backend/tcl_runs.h"

namespace npu::tcl {
namespace {

// `order` with the neighbours `whole` replaced by `piece`; nothing when they are not neighbours.
std::optional<Atoms> replaced(const Atoms& order, const Atoms& whole, const Atoms& piece) {
  const auto at = std::search(order.begin(), order.end(), whole.begin(), whole.end());
  if (whole.empty() || at == order.end()) return std::nullopt;
  Atoms out(order.begin(), at);
  out.insert(out.end(), piece.begin(), piece.end());
  out.insert(out.end(), at + static_cast<std::ptrdiff_t>(whole.size()), order.end());
  return out;
}

class Arranger {
 public:
  Arranger(const Graph& graph, const Axes& axes, const std::vector<Item>& items)
      : graph_(graph), axes_(axes), items_(items) {}

  Result<FunctionLayout> run() {
    add_inputs();
    for (const Item& item : items_) {
      if (item.is_view) {
        add_view(item.view);
      } else {
        add_block(item.block);
      }
    }
    for (const GraphOutput& output : graph_.outputs()) out_.outputs.push_back(written(output.node));
    if (auto error = name_runs(graph_, axes_, out_)) return *error;
    return std::move(out_);
  }

 private:
  NodeId storage(NodeId id) const { return storage_of(graph_, id); }

  size_t add_tensor(std::string name, NodeId node, DType dtype, Atoms order) {
    out_.tensors.push_back({std::move(name), node, dtype, std::move(order), {}, false});
    return out_.tensors.size() - 1;
  }

  void add_inputs() {
    std::set<NodeId> used;
    for (const Item& item : items_) {
      for (const Use& use : item.is_view ? item.view.parts : item.block.reads)
        used.insert(use.node);
    }
    for (const GraphOutput& output : graph_.outputs()) used.insert(storage(output.node));
    for (const NodeId id : graph_.inputs()) {
      if (!used.contains(id)) continue;
      const size_t t = add_tensor("i" + std::to_string(out_.tensors.size()), id,
                                  graph_.node(id).type.dtype, axes_.atoms_of(id));
      out_.tensors[t].is_input = true;
      tensor_of_[id] = t;
    }
  }

  bool is_output(NodeId id) const {
    return std::any_of(graph_.outputs().begin(), graph_.outputs().end(),
                       [&](const GraphOutput& o) { return storage(o.node) == id; });
  }

  bool only_contracted(NodeId id) const {
    for (const Item& item : items_) {
      const std::vector<Use>& uses = item.is_view ? item.view.parts : item.block.reads;
      for (size_t i = 0; i < uses.size(); ++i) {
        if (uses[i].node != id) continue;
        if (item.is_view || !item.block.contracts || i > 1) return false;
      }
    }
    return true;
  }

  // In what type a value is written: as the graph says, or in bf16 where that is known to lose
  // nothing: it holds bf16 values anyway, or only products read it, which round their operands.
  DType written_type(NodeId id) const {
    const DType dtype = graph_.node(id).type.dtype;
    if (is_output(id)) return dtype;
    return holds_bf16(graph_, id) || only_contracted(id) ? DType::kBF16 : dtype;
  }

  // The order that a product or an output wants of the value that is stored for `id`.
  std::optional<Atoms> wanted_order(NodeId id) const {
    for (const GraphOutput& output : graph_.outputs()) {
      if (storage(output.node) == id) return axes_.atoms_of(output.node);
    }
    for (const Item& item : items_) {
      if (item.is_view || !item.block.contracts) continue;
      for (const NodeId in : graph_.node(item.block.contraction).inputs) {
        if (storage(in) == id) return axes_.atoms_of(in);
      }
    }
    for (const Item& item : items_) {  // the other parts of what it will be joined to
      if (!item.is_view || !item.view.joins) continue;
      const auto reads = [&](const Use& use) { return use.node == id && use.renaming.empty(); };
      if (std::none_of(item.view.parts.begin(), item.view.parts.end(), reads)) continue;
      for (const Use& use : item.view.parts) {
        const auto other = tensor_of_.find(use.node);
        if (other == tensor_of_.end() || !use.renaming.empty()) continue;
        const Atoms& order = out_.tensors[other->second].order;
        if (std::is_permutation(order.begin(), order.end(), axes_.atoms_of(id).begin(),
                                axes_.atoms_of(id).end())) {
          return order;
        }
      }
    }
    return std::nullopt;
  }

  Atoms order_for(const Block& block) const {
    const Atoms natural = axes_.atoms_of(block.result);
    if (const std::optional<Atoms> wanted = wanted_order(block.result)) return *wanted;
    if (block.contracts) return natural;
    // As its main operand lies, so that nothing moves.
    const Use& main = block.reads.front();
    Atoms kept;
    for (const int leaf : renamed(out_.tensors[tensor_of_.at(main.node)].order, main.renaming)) {
      if (std::find(natural.begin(), natural.end(), leaf) != natural.end()) kept.push_back(leaf);
    }
    return kept.size() == natural.size() ? kept : natural;
  }

  void add_block(const Block& block) {
    Statement statement;
    statement.block = &block;
    for (const Use& use : block.reads) {
      statement.uses.push_back({tensor_of_.at(use.node), use.renaming, {}});
    }
    statement.result = add_tensor("n" + std::to_string(block.result), block.result,
                                  written_type(block.result), order_for(block));
    tensor_of_[block.result] = statement.result;
    out_.statements.push_back(std::move(statement));
  }

  // The tensor in another order or type.
  size_t copied(size_t source, DType dtype, const Atoms& order) {
    const auto key = std::tuple(source, dtype, order);
    if (const auto found = copies_.find(key); found != copies_.end()) return found->second;
    Statement statement;
    statement.kind = Statement::Kind::kCopy;
    statement.uses.push_back({source, {}, {}});
    statement.result =
        add_tensor("c" + std::to_string(copies_.size()), out_.tensors[source].node, dtype, order);
    copies_[key] = statement.result;
    const size_t result = statement.result;
    out_.statements.push_back(std::move(statement));
    return result;
  }

  void add_view(const View& view) {
    tensor_of_[view.result] = view.joins ? add_concat(view) : add_slices(view);
  }

  size_t add_slices(const View& view) {
    size_t source = tensor_of_.at(view.parts.front().node);
    Atoms natural = axes_.atoms_of(graph_.node(view.result).inputs[0]);
    for (const View::Cut& cut : view.cuts) {
      if (!replaced(out_.tensors[source].order, cut.whole, cut.piece)) {
        source = copied(source, out_.tensors[source].dtype, natural);
      }
      const Atoms order = *replaced(out_.tensors[source].order, cut.whole, cut.piece);
      natural = *replaced(natural, cut.whole, cut.piece);
      Statement statement;
      statement.kind = Statement::Kind::kSlice;
      statement.uses.push_back({source, {}, {}});
      statement.whole = cut.whole;
      statement.pieces = {cut.piece};
      statement.offset = cut.offset;
      const bool last = &cut == &view.cuts.back();
      statement.result =
          add_tensor(last ? "n" + std::to_string(view.result) : "s" + std::to_string(num_slices_++),
                     view.result, out_.tensors[source].dtype, order);
      source = statement.result;
      out_.statements.push_back(std::move(statement));
    }
    return source;
  }

  size_t add_concat(const View& view) {
    Statement statement;
    statement.kind = Statement::Kind::kConcat;
    statement.whole = view.whole;
    statement.pieces = view.pieces;
    const DType type = written_type(view.result);
    std::optional<Atoms> joined;
    for (size_t i = 0; i < view.parts.size(); ++i) {
      const Use& use = view.parts[i];
      size_t tensor = tensor_of_.at(use.node);
      const auto joined_order = [&] {
        return replaced(renamed(out_.tensors[tensor].order, use.renaming), view.pieces[i],
                        view.whole);
      };
      const bool other_type = out_.tensors[tensor].dtype != type;
      if (!joined_order() || (joined && joined_order() != joined) || other_type) {
        Atoms order = axes_.atoms_of(graph_.node(view.result).inputs[i]);
        if (joined) {  // as the first part lies
          Renaming back;
          for (const auto& [from, to] : use.renaming) back[to] = from;
          order = renamed(*replaced(*joined, view.whole, view.pieces[i]), back);
        }
        tensor = copied(tensor, type, order);
      }
      joined = joined_order();
      statement.uses.push_back({tensor, use.renaming, {}});
    }
    statement.result = add_tensor("n" + std::to_string(view.result), view.result, type, *joined);
    const size_t result = statement.result;
    out_.statements.push_back(std::move(statement));
    return result;
  }

  bool is_product(size_t tensor) const {
    return std::any_of(out_.statements.begin(), out_.statements.end(), [&](const Statement& s) {
      return s.result == tensor && s.block != nullptr && s.block->contracts;
    });
  }

  bool is_read(size_t tensor) const {
    return std::any_of(out_.statements.begin(), out_.statements.end(), [&](const Statement& s) {
      return std::any_of(s.uses.begin(), s.uses.end(), [&](const TensorUse& use) {
        return use.tensor == tensor && s.kind != Statement::Kind::kCopy;
      });
    });
  }

  // The tensor that holds an output as the graph declares it. An input must be copied: TCL takes
  // no input that no block reads. So is a product that is read on: where one block's result is
  // both, furiosa-tcc prices its readers as if they waited for the memory.
  size_t written(NodeId output) {
    const size_t tensor = tensor_of_.at(storage(output));
    const DType dtype = graph_.node(output).type.dtype;
    const Atoms order = axes_.atoms_of(output);
    const StoredTensor& stored = out_.tensors[tensor];
    const bool as_it_is = !stored.is_input && stored.dtype == dtype && stored.order == order;
    if (as_it_is && !(is_product(tensor) && is_read(tensor))) return tensor;
    return copied(tensor, dtype, order);
  }

  const Graph& graph_;
  const Axes& axes_;
  const std::vector<Item>& items_;
  FunctionLayout out_;
  std::map<NodeId, size_t> tensor_of_;
  std::map<std::tuple<size_t, DType, Atoms>, size_t> copies_;
  size_t num_slices_ = 0;
};

}  // namespace

Result<FunctionLayout> lay_out(const Graph& graph, const Axes& axes,
                               const std::vector<Item>& items) {
  return Arranger(graph, axes, items).run();
}

}  // namespace npu::tcl
