// Maximum flow (Dinic 1970), and the minimum cut that lies nearest to the sink.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace npu {

class FlowNetwork {
 public:
  // Larger than any sum of capacities that a caller may use.
  static constexpr int64_t kUnbounded = int64_t{1} << 62;

  int add_vertex();
  void add_edge(int from, int to, int64_t capacity);

  // Pushes as much flow as the capacities allow and returns it. An unbounded path from source to
  // sink is an InternalError.
  int64_t maximize(int source, int sink);

  // After maximize(): true for the vertices that can still reach `sink`. The edges that lead into
  // this set are a minimum cut, and no other minimum cut lies nearer to the sink.
  std::vector<bool> sink_side(int sink) const;

 private:
  // Edge e and its reverse e ^ 1 stand side by side.
  struct Edge {
    int to;
    int64_t residual;
  };
  bool assign_levels(int source, int sink);
  int64_t blocking_flow(int source, int sink);
  int64_t push(const std::vector<int>& path);

  std::vector<Edge> edges_;
  std::vector<std::vector<int>> out_;  // by vertex: ids of its edges
  std::vector<int> level_;             // distance from the source, -1 when unreachable
  std::vector<size_t> next_;           // first edge of out_ not yet found useless in this phase
};

}  // namespace npu
