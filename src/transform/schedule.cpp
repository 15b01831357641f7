// Topological orders that keep values close to their users, for the cut to choose from.
#include "transform/schedule.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace npu {
namespace {

size_t at(NodeId id) { return static_cast<size_t>(id); }

std::vector<bool> nodes_to_place(const Graph& graph) {
  std::vector<bool> place(graph.nodes().size());
  for (size_t id = 0; id < place.size(); ++id) {
    place[id] = !graph.nodes()[id].is_input() && !is_repeated(graph, static_cast<NodeId>(id));
  }
  for (const GraphOutput& output : graph.outputs())
    if (!graph.node(output.node).is_input()) place[at(output.node)] = true;
  return place;
}

// Distinct operands, so that x·x counts x once.
std::vector<NodeId> distinct_operands(const Node& node) {
  std::vector<NodeId> operands = node.inputs;
  std::sort(operands.begin(), operands.end());
  operands.erase(std::unique(operands.begin(), operands.end()), operands.end());
  return operands;
}

// Depth first from the outputs: each node comes just before the first node that needs it.
std::vector<NodeId> depth_first_order(const Graph& graph, const std::vector<bool>& place) {
  std::vector<NodeId> order;
  std::vector<bool> done(place.size(), false);
  for (const GraphOutput& output : graph.outputs()) {
    std::vector<NodeId> stack = {output.node};
    while (!stack.empty()) {
      const NodeId id = stack.back();
      const size_t depth = stack.size();
      if (!done[at(id)]) {
        const std::vector<NodeId>& operands = graph.node(id).inputs;
        for (auto operand = operands.rbegin(); operand != operands.rend(); ++operand)
          if (!done[at(*operand)]) stack.push_back(*operand);
      }
      if (stack.size() > depth) continue;
      stack.pop_back();
      if (!done[at(id)] && place[at(id)]) order.push_back(id);
      done[at(id)] = true;
    }
  }
  return order;
}

// List schedule: of the nodes whose operands are ready, the one that adds the fewest bytes to what
// is alive comes next. Nodes that shrink their operands move up to them, nodes that grow them move
// down to their users.
class GreedySchedule {
 public:
  GreedySchedule(const Graph& graph, const std::vector<bool>& place)
      : graph_(graph),
        place_(place),
        waiting_for_(place.size(), 0),
        uses_left_(place.size(), 0),
        users_(place.size()) {
    for (size_t id = 0; id < place.size(); ++id) {
      if (!place[id]) continue;
      for (NodeId operand : distinct_operands(graph.nodes()[id])) {
        if (!place[at(operand)]) continue;
        ++waiting_for_[id];
        ++uses_left_[at(operand)];
        users_[at(operand)].push_back(static_cast<NodeId>(id));
      }
    }
    for (const GraphOutput& output : graph.outputs()) ++uses_left_[at(output.node)];
    for (size_t id = 0; id < place.size(); ++id)
      if (place[id] && waiting_for_[id] == 0) ready_.insert(static_cast<NodeId>(id));
  }

  std::vector<NodeId> run() {
    std::vector<NodeId> order;
    while (!ready_.empty()) {
      const NodeId next =
          *std::min_element(ready_.begin(), ready_.end(), [this](NodeId a, NodeId b) {
            return std::tuple(added_bytes(a), a) < std::tuple(added_bytes(b), b);
          });
      ready_.erase(next);
      order.push_back(next);
      for (NodeId operand : distinct_operands(graph_.node(next))) --uses_left_[at(operand)];
      for (NodeId user : users_[at(next)])
        if (--waiting_for_[at(user)] == 0) ready_.insert(user);
    }
    return order;
  }

 private:
  int64_t added_bytes(NodeId id) const {
    int64_t bytes = graph_.node(id).type.bytes();
    for (NodeId operand : distinct_operands(graph_.node(id))) {
      if (place_[at(operand)] && uses_left_[at(operand)] == 1)
        bytes -= graph_.node(operand).type.bytes();
    }
    return bytes;
  }

  const Graph& graph_;
  const std::vector<bool>& place_;
  std::vector<int> waiting_for_;  // operands not yet scheduled
  std::vector<int> uses_left_;    // users not yet scheduled, plus names as graph output
  std::vector<std::vector<NodeId>> users_;
  std::set<NodeId> ready_;
};

std::vector<NodeId> id_order(const std::vector<bool>& place) {
  std::vector<NodeId> order;
  for (size_t id = 0; id < place.size(); ++id)
    if (place[id]) order.push_back(static_cast<NodeId>(id));
  return order;
}

}  // namespace

std::vector<std::vector<NodeId>> candidate_orders(const Graph& graph) {
  const std::vector<bool> place = nodes_to_place(graph);
  return {id_order(place), depth_first_order(graph, place), GreedySchedule(graph, place).run()};
}

}  // namespace npu
