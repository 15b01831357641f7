// Minimum cut by maximum flow (Dinic), deterministic.
#include "transform/min_cut.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace npu {

int FlowNetwork::add_vertex() {
  out_.emplace_back();
  return static_cast<int>(out_.size()) - 1;
}

void FlowNetwork::add_edge(int from, int to, int64_t capacity) {
  NPU_CHECK(capacity >= 0, std::to_string(capacity));
  out_[static_cast<size_t>(from)].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({to, capacity});
  out_[static_cast<size_t>(to)].push_back(static_cast<int>(edges_.size()));
  edges_.push_back({from, 0});
}

bool FlowNetwork::assign_levels(int source, int sink) {
  level_.assign(out_.size(), -1);
  level_[static_cast<size_t>(source)] = 0;
  std::vector<int> queue = {source};
  for (size_t head = 0; head < queue.size(); ++head) {
    const int vertex = queue[head];
    for (int id : out_[static_cast<size_t>(vertex)]) {
      const Edge& edge = edges_[static_cast<size_t>(id)];
      int& level = level_[static_cast<size_t>(edge.to)];
      if (edge.residual == 0 || level >= 0) continue;
      level = level_[static_cast<size_t>(vertex)] + 1;
      queue.push_back(edge.to);
    }
  }
  return level_[static_cast<size_t>(sink)] >= 0;
}

int64_t FlowNetwork::push(const std::vector<int>& path) {
  int64_t amount = kUnbounded;
  for (int id : path) amount = std::min(amount, edges_[static_cast<size_t>(id)].residual);
  NPU_CHECK(amount < kUnbounded / 2, "a path without capacity limit");
  for (int id : path) {
    edges_[static_cast<size_t>(id)].residual -= amount;
    edges_[static_cast<size_t>(id ^ 1)].residual += amount;
  }
  return amount;
}

int64_t FlowNetwork::blocking_flow(int source, int sink) {
  next_.assign(out_.size(), 0);
  int64_t total = 0;
  std::vector<int> path;
  int vertex = source;
  while (true) {
    if (vertex == sink) {
      total += push(path);
      path.clear();
      vertex = source;
      continue;
    }
    const std::vector<int>& out = out_[static_cast<size_t>(vertex)];
    size_t& next = next_[static_cast<size_t>(vertex)];
    const int level = level_[static_cast<size_t>(vertex)];
    while (next < out.size()) {
      const Edge& edge = edges_[static_cast<size_t>(out[next])];
      if (edge.residual > 0 && level_[static_cast<size_t>(edge.to)] == level + 1) break;
      ++next;
    }
    if (next < out.size()) {
      path.push_back(out[next]);
      vertex = edges_[static_cast<size_t>(out[next])].to;
    } else {  // dead end: step back and never enter this vertex again in this phase
      if (path.empty()) return total;
      vertex = edges_[static_cast<size_t>(path.back() ^ 1)].to;
      path.pop_back();
      ++next_[static_cast<size_t>(vertex)];
    }
  }
}

int64_t FlowNetwork::maximize(int source, int sink) {
  int64_t total = 0;
  while (assign_levels(source, sink)) total += blocking_flow(source, sink);
  return total;
}

std::vector<bool> FlowNetwork::sink_side(int sink) const {
  std::vector<bool> reaches(out_.size(), false);
  reaches[static_cast<size_t>(sink)] = true;
  std::vector<int> stack = {sink};
  while (!stack.empty()) {
    const int vertex = stack.back();
    stack.pop_back();
    for (int id : out_[static_cast<size_t>(vertex)]) {
      // The reverse of an edge at `vertex` is an edge that enters it.
      const int from = edges_[static_cast<size_t>(id)].to;
      if (edges_[static_cast<size_t>(id ^ 1)].residual == 0) continue;
      if (reaches[static_cast<size_t>(from)]) continue;
      reaches[static_cast<size_t>(from)] = true;
      stack.push_back(from);
    }
  }
  return reaches;
}

}  // namespace npu
