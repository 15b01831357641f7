// What a step costs by the vendor's forecast of its parts: what `plan` prints where the backend's
// compiler makes one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/environment.h"
#include "train/session.h"

namespace npu {

// One graph of the longest bucket that a micro-batch runs.
struct GraphPrice {
  std::string group, graph;
  int64_t calls = 0;                  // a micro-batch
  int64_t launches = 0;               // a call: its parts on the device
  int64_t host_parts = 0;             // not priced
  std::vector<std::string> unpriced;  // parts that the vendor has no forecast for, with its words
  double cycles = 0;                  // a call, of the parts that are priced
  double flops = 0;                   // a call, of products in those parts
  int64_t bytes = 0;                  // a call: inputs and outputs of those parts, in device memory
  int64_t compiled_parts = 0;         // whose code is in the cache
  int64_t scheduled_parts = 0;        // of these, whose code says what it takes
  double scheduled_cycles = 0;        // a call, by what they say
  // Of parts that have both: the two sums that can be compared.
  double compared_scheduled = 0, compared_forecast = 0;
};

struct StepPrice {
  std::string target;
  CostRates rates;
  std::vector<GraphPrice> graphs;
  int64_t tokens = 0, launches = 0, transfer_bytes = 0;
  double cycles = 0, flops = 0;
  double launch_seconds = 0;  // of one launch

  double cycle_seconds() const { return cycles / rates.cycles_per_second; }
  double launches_seconds() const { return static_cast<double>(launches) * launch_seconds; }
  double transfer_seconds() const {
    return static_cast<double>(transfer_bytes) / rates.transfer_bytes_per_second;
  }
  double seconds() const { return cycle_seconds() + launches_seconds() + transfer_seconds(); }
  double tokens_per_second() const { return static_cast<double>(tokens) / seconds(); }
  // Of products, against the peak of what is compiled for.
  double peak_share() const { return flops / seconds() / rates.flops_per_second; }
  // False when something is not in the price: then it is a lower bound of the time.
  bool complete() const;

  // The same by what the compiler says of its schedules. Parts are counted once a graph.
  int64_t parts = 0, compiled_parts = 0, scheduled_parts = 0;
  double scheduled_cycles = 0;
  double compared_scheduled = 0, compared_forecast = 0;
  bool all_scheduled() const { return parts > 0 && scheduled_parts == parts; }
  double scheduled_seconds() const {
    return scheduled_cycles / rates.cycles_per_second + launches_seconds() + transfer_seconds();
  }
  double scheduled_tokens_per_second() const {
    return static_cast<double>(tokens) / scheduled_seconds();
  }
  int64_t host_parts() const;
};

// The step of a plan, for the target that it was made for. `transfer_bytes` move between host and
// device a step. Nothing where the backend's compiler forecasts nothing, or is missing: then a line
// of the log says so. UserErrors: a target that it does not know.
std::optional<StepPrice> price_step(const ModelConfig& config, const Prepared& prepared,
                                    int64_t transfer_bytes);

Json price_json(const StepPrice& price);
void print_price(const StepPrice& price);

}  // namespace npu
