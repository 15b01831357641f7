// What a step of the whole model takes, from the times of single parts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "compile/plan.h"
#include "train/model_graphs.h"

namespace npu {

// Collects the calls of parts that a Runtime's probe sees. A part's time is the least of its calls:
// the first ones also pay for cold memory.
class StepClock {
 public:
  void add(const Runtime::PartCall& call);

  // Seconds of one training step (or, of graphs for evaluation only, of one scoring pass) of a
  // model with `layers` layers, by placement group. Host work between parts is not in it.
  std::map<std::string, double, std::less<>> group_seconds(const ModelGraphs& graphs,
                                                           int64_t layers) const;
  double step_seconds(const ModelGraphs& graphs, int64_t layers) const;

 private:
  struct GraphTime {
    std::string group;
    std::map<size_t, double> part_seconds;
  };
  std::map<std::string, GraphTime, std::less<>> graphs_;
};

}  // namespace npu
