// Least time of each part, times how often a step calls it.
#include "train/step_clock.h"

#include <algorithm>

namespace npu {

void StepClock::add(const Runtime::PartCall& call) {
  GraphTime& graph = graphs_[call.graph.name];
  graph.group = call.graph.group;
  const auto [known, is_new] = graph.part_seconds.emplace(call.part, call.seconds);
  if (!is_new) known->second = std::min(known->second, call.seconds);
}

std::map<std::string, double, std::less<>> StepClock::group_seconds(const ModelGraphs& graphs,
                                                                    int64_t layers) const {
  std::map<std::string, double, std::less<>> seconds;
  for (const auto& [name, graph] : graphs_) {
    double& sum = seconds[graph.group];
    for (const auto& [part, part_seconds] : graph.part_seconds) {
      sum += static_cast<double>(graphs.calls_per_step(name, layers)) * part_seconds;
    }
  }
  return seconds;
}

double StepClock::step_seconds(const ModelGraphs& graphs, int64_t layers) const {
  double sum = 0;
  for (const auto& [group, seconds] : group_seconds(graphs, layers)) sum += seconds;
  return sum;
}

}  // namespace npu
