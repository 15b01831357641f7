// Chooses where to cut: a dynamic program over a topological order, tried on a few orders that keep
// producers and consumers near each other.
#include "transform/partition.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/error.h"
#include "ir/text.h"
#include "transform/schedule.h"

namespace npu {
namespace {

constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max();

bool exceeds(int64_t count, int64_t limit) { return limit > 0 && count > limit; }

// What one part would need and move.
struct PartSize {
  int64_t contractions = 0, nodes = 0, inputs = 0, outputs = 0;
  int64_t bytes_in = 0, bytes_out = 0;  // values read from, or left for, other parts
};

bool fits(const PartSize& size, const PartLimits& limits) {
  return !exceeds(size.contractions, limits.contractions) && !exceeds(size.nodes, limits.nodes) &&
         !exceeds(size.inputs, limits.inputs) && !exceeds(size.outputs, limits.outputs);
}

// Grows a part node by node along `order` and keeps its size up to date.
class GrowingPart {
 public:
  GrowingPart(const Graph& graph, const std::vector<NodeId>& order)
      : graph_(graph),
        order_(order),
        position_(graph.nodes().size(), -1),
        last_use_(graph.nodes().size(), -1),
        output_names_(graph.nodes().size(), 0),
        seen_by_(graph.nodes().size(), -1),
        released_at_(order.size()) {
    for (size_t i = 0; i < order.size(); ++i) position_[at(order[i])] = static_cast<int>(i);
    for (size_t i = 0; i < order.size(); ++i) {
      for (NodeId operand : graph.node(order[i]).inputs)
        last_use_[at(operand)] = static_cast<int>(i);
    }
    for (const GraphOutput& output : graph.outputs()) ++output_names_[at(output.node)];
    for (NodeId id : order) {
      if (last_use_[at(id)] >= 0 && !is_repeated(graph, id))
        released_at_[at(last_use_[at(id)])].push_back(id);
    }
  }

  // Starts an empty part whose first node is order[begin].
  void start(size_t begin) {
    begin_ = static_cast<int>(begin);
    size_ = {};
    if (begin != 0) return;
    // Outputs that are graph inputs need no computation; the first part hands them on.
    for (NodeId id : graph_.inputs()) {
      if (output_names_[at(id)] == 0) continue;
      size_.outputs += output_names_[at(id)];
      see_operand(id);
    }
  }

  const PartSize& append(size_t index) {
    const NodeId id = order_[index];
    const Node& node = graph_.node(id);
    ++size_.nodes;
    if (node.op->traits.contraction) ++size_.contractions;
    seen_by_[at(id)] = begin_;
    for (NodeId operand : node.inputs) see_operand(operand);
    // A value leaves the part while an output name or a later node wants it.
    size_.outputs += output_names_[at(id)];
    const bool wanted_later = last_use_[at(id)] >= 0 && !is_repeated(graph_, id);
    if (wanted_later) {
      size_.bytes_out += graph_.node(id).type.bytes();
      if (output_names_[at(id)] == 0) ++size_.outputs;
    }
    for (NodeId released : released_at_[index]) {
      if (position_[at(released)] < begin_) continue;
      size_.bytes_out -= graph_.node(released).type.bytes();
      if (output_names_[at(released)] == 0) --size_.outputs;
    }
    return size_;
  }

 private:
  static size_t at(int64_t id) { return static_cast<size_t>(id); }

  void see_operand(NodeId id) {
    if (seen_by_[at(id)] == begin_) return;
    seen_by_[at(id)] = begin_;
    if (is_repeated(graph_, id)) {
      ++size_.nodes;
    } else if (graph_.node(id).is_input() || position_[at(id)] < begin_) {
      ++size_.inputs;
      if (!graph_.node(id).is_input()) size_.bytes_in += graph_.node(id).type.bytes();
    }
  }

  const Graph& graph_;
  const std::vector<NodeId>& order_;
  std::vector<int> position_;      // by node: its index in order_, -1 for inputs and repeated nodes
  std::vector<int> last_use_;      // by node: index in order_ of its last user, -1 without users
  std::vector<int> output_names_;  // by node: how many outputs of the graph it is
  std::vector<int> seen_by_;       // by node: begin of the part that counted it last
  std::vector<std::vector<NodeId>> released_at_;  // by index: values whose last use is there
  int begin_ = 0;
  PartSize size_;
};

struct Cuts {
  int64_t bytes = kInfinite;   // moved in and out of parts
  std::vector<size_t> begins;  // index in the order of each part's first node
};

// best[j]: the cheapest way to cut the first j nodes, by bytes and then by number of parts.
Cuts best_cuts(const Graph& graph, const std::vector<NodeId>& order, const PartLimits& limits) {
  struct Best {
    int64_t bytes = kInfinite;
    int parts = 0;
    size_t begin = 0;  // of the last part
  };
  std::vector<Best> best(order.size() + 1);
  best[0].bytes = 0;
  GrowingPart part(graph, order);
  for (size_t begin = 0; begin < order.size(); ++begin) {
    part.start(begin);
    if (best[begin].bytes == kInfinite) continue;
    for (size_t i = begin; i < order.size(); ++i) {
      const PartSize& size = part.append(i);
      PartSize monotone = size;  // outputs may fall again as the part grows, the rest can't
      monotone.outputs = 0;
      if (!fits(monotone, limits)) break;
      if (!fits(size, limits)) continue;
      const Best candidate = {best[begin].bytes + size.bytes_in + size.bytes_out,
                              best[begin].parts + 1, begin};
      Best& known = best[i + 1];
      if (std::pair(candidate.bytes, candidate.parts) < std::pair(known.bytes, known.parts))
        known = candidate;
    }
  }
  Cuts cuts;
  cuts.bytes = best[order.size()].bytes;
  if (cuts.bytes == kInfinite) return cuts;
  for (size_t end = order.size(); end > 0; end = best[end].begin)
    cuts.begins.push_back(best[end].begin);
  std::reverse(cuts.begins.begin(), cuts.begins.end());
  return cuts;
}

// A part of one node is the least there is: when no cut exists, some node alone breaks a limit.
Error no_cut_error(const Graph& graph, const std::vector<NodeId>& order, const PartLimits& limits) {
  GrowingPart part(graph, order);
  Error error = {ErrorKind::kBadInput, "partition of graph " + graph.name(),
                 "every node fits a part of its own", "", "raise the part limits"};
  for (size_t i = 0; i < order.size(); ++i) {
    part.start(i);
    const PartSize size = part.append(i);
    if (fits(size, limits)) continue;
    error.got = print_node(graph, order[i]) + " with " + std::to_string(size.inputs) + " inputs, " +
                std::to_string(size.outputs) + " outputs, " + std::to_string(size.nodes) + " nodes";
    return error;
  }
  NPU_CHECK(false, "no cut although every node fits alone");
  return error;
}

PartLabels labels_of(const Graph& graph, const std::vector<NodeId>& order, const Cuts& cuts) {
  PartLabels labels;
  labels.part.assign(graph.nodes().size(), -1);
  labels.count = std::max<int>(1, static_cast<int>(cuts.begins.size()));
  for (size_t part = 0; part < cuts.begins.size(); ++part) {
    const size_t end = part + 1 < cuts.begins.size() ? cuts.begins[part + 1] : order.size();
    for (size_t i = cuts.begins[part]; i < end; ++i)
      labels.part[static_cast<size_t>(order[i])] = static_cast<int>(part);
  }
  // A repeated node is labelled with the first part that uses it.
  for (NodeId id : order) {
    const int part = labels.part[static_cast<size_t>(id)];
    for (NodeId operand : graph.node(id).inputs) {
      int& label = labels.part[static_cast<size_t>(operand)];
      if (is_repeated(graph, operand) && (label < 0 || label > part)) label = part;
    }
  }
  return labels;
}

}  // namespace

Result<PartLabels> partition(const Graph& graph, const PartLimits& limits) {
  const std::vector<std::vector<NodeId>> orders = candidate_orders(graph);
  size_t chosen = 0;
  Cuts best;
  for (size_t i = 0; i < orders.size(); ++i) {
    Cuts cuts = best_cuts(graph, orders[i], limits);
    if (cuts.bytes < best.bytes ||
        (cuts.bytes == best.bytes && cuts.begins.size() < best.begins.size())) {
      best = std::move(cuts);
      chosen = i;
    }
  }
  if (best.bytes == kInfinite) return no_cut_error(graph, orders[0], limits);
  return labels_of(graph, orders[chosen], best);
}

}  // namespace npu
