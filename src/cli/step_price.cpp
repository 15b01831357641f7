// Pricing a step: estimates of distinct parts, times how often each runs, plus launches and copies.
#include "cli/step_price.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/log.h"
#include "compile/estimate.h"

namespace npu {
namespace {

// Of a distinct part that a step runs on the device.
struct PartPrice {
  Result<double> forecast;
  bool compiled = false;
  std::optional<double> scheduled;  // by the code, if it says
};
using PartPrices = std::map<size_t, PartPrice>;  // by their place in the plan

GraphPrice price_graph(const PlannedGraph& graph, int64_t calls, const Plan& plan,
                       const PartPrices& prices) {
  GraphPrice price;
  price.group = graph.group;
  price.graph = graph.name;
  price.calls = calls;
  for (const PlannedPart& part : graph.parts) {
    if (part.on_host) {
      ++price.host_parts;
      continue;
    }
    ++price.launches;
    const auto& [cycles, compiled, scheduled] = prices.at(part.distinct);
    if (compiled) ++price.compiled_parts;
    if (scheduled) {
      ++price.scheduled_parts;
      price.scheduled_cycles += *scheduled;
    }
    if (scheduled && cycles) {
      price.compared_scheduled += *scheduled;
      price.compared_forecast += cycles.value();
    }
    if (!cycles) {
      price.unpriced.push_back(part.name + ": " + cycles.error().text());
      continue;
    }
    const Graph& body = plan.distinct[part.distinct].graph;
    price.cycles += cycles.value();
    price.flops += body.contraction_flops();
    price.bytes += body.input_bytes() + body.output_bytes();
  }
  return price;
}

// A graph of the longest bucket and how often a micro-batch runs it, if at all.
struct Run {
  const PlannedGraph* graph;
  int64_t calls;
};

std::vector<Run> runs_of(const ModelConfig& config, const Prepared& prepared) {
  std::vector<Run> runs;
  for (const PlannedGraph& graph : prepared.plan.graphs) {
    if (graph.name != prepared.graphs.longest().name(plain_name(graph.name))) continue;
    const int64_t calls = prepared.graphs.calls_per_step(graph.name, config.num_hidden_layers);
    if (calls > 0) runs.push_back({&graph, calls});
  }
  return runs;
}

Result<PartPrices> price_parts(const std::vector<Run>& runs, const Prepared& prepared,
                               const CompileOptions& options) {
  std::set<size_t> used;
  for (const Run& run : runs) {
    for (const PlannedPart& part : run.graph->parts) {
      if (!part.on_host) used.insert(part.distinct);
    }
  }
  std::vector<const Graph*> parts;
  for (const size_t part : used) parts.push_back(&prepared.plan.distinct[part].graph);
  Result<std::vector<Result<double>>> cycles =
      estimate_parts(parts, *prepared.backend, options, prepared.options.compile);
  if (!cycles) return cycles.error();
  PartPrices out;
  for (const size_t part : used) {
    PartPrice price{std::move(cycles.value()[out.size()]), false, std::nullopt};
    const std::optional<CompileOutcome>& outcome = prepared.plan.distinct[part].outcome;
    price.compiled = outcome && outcome->built();
    if (price.compiled) price.scheduled = prepared.backend->code_cycles(outcome->blob);
    out.emplace(part, std::move(price));
  }
  return out;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", 100 * share);
  return text;
}

std::string rounded(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

double share_of_peak(const StepPrice& price, double flops, double cycles) {
  if (cycles <= 0) return 0;
  return flops / (cycles / price.rates.cycles_per_second) / price.rates.flops_per_second;
}

// What the code in the cache says of itself beside the forecast.
void print_compiled(const StepPrice& price) {
  if (price.compiled_parts == 0) return;
  std::cout << "as compiled, by the compiler's own schedules: ";
  if (price.all_scheduled()) {
    std::cout << rounded(price.scheduled_cycles * 1e-6, 3) << " M cycles, "
              << rounded(price.scheduled_seconds() * 1e3, 3) << " ms, "
              << (price.host_parts() > 0 ? "at most " : "")
              << rounded(price.scheduled_tokens_per_second(), 0) << " tok/s";
  } else {
    std::cout << price.compiled_parts << " of " << price.parts << " parts so far";
    const int64_t silent = price.compiled_parts - price.scheduled_parts;
    if (silent > 0) std::cout << ", " << silent << " without a word of their schedule";
  }
  if (price.compared_forecast > 0) {
    std::cout << "; " << rounded(price.compared_scheduled / price.compared_forecast, 2)
              << " x the estimate";
  }
  std::cout << "\n";
}

}  // namespace

bool StepPrice::complete() const {
  return std::ranges::all_of(graphs, [](const GraphPrice& graph) {
    return graph.host_parts == 0 && graph.unpriced.empty();
  });
}

int64_t StepPrice::host_parts() const {
  int64_t count = 0;
  for (const GraphPrice& graph : graphs) count += graph.host_parts;
  return count;
}

std::optional<StepPrice> price_step(const ModelConfig& config, const Prepared& prepared,
                                    int64_t transfer_bytes) {
  const LayerOptions& layer = prepared.graphs.options.layer;
  const std::vector<Run> runs = runs_of(config, prepared);
  const CompileOptions& options = prepared.options.plan.compile;
  const std::optional<CostRates> rates = prepared.backend->cost_rates(options);
  if (!rates) return std::nullopt;
  const Result<PartPrices> prices = price_parts(runs, prepared, options);
  if (!prices) {
    if (prices.error().kind == ErrorKind::kUsage) throw UserError(prices.error());
    log_warn("plan", "no estimate of the step: " + prices.error().text());
    return std::nullopt;
  }
  StepPrice price;
  for (const auto& [name, value] : options.vendor) {
    if (name == "target") price.target = value;
  }
  price.rates = *rates;
  price.tokens = layer.batch * layer.seq_len;
  price.transfer_bytes = transfer_bytes;
  price.launch_seconds = prepared.backend->traits().launch_seconds;
  for (const auto& [graph, calls] : runs) {
    GraphPrice row = price_graph(*graph, calls, prepared.plan, prices.value());
    price.cycles += static_cast<double>(calls) * row.cycles;
    price.flops += static_cast<double>(calls) * row.flops;
    price.launches += calls * row.launches;
    price.parts += row.launches;
    price.compiled_parts += row.compiled_parts;
    price.scheduled_parts += row.scheduled_parts;
    price.scheduled_cycles += static_cast<double>(calls) * row.scheduled_cycles;
    price.compared_scheduled += static_cast<double>(calls) * row.compared_scheduled;
    price.compared_forecast += static_cast<double>(calls) * row.compared_forecast;
    price.graphs.push_back(std::move(row));
  }
  return price;
}

Json price_json(const StepPrice& price) {
  Json out = {{"target", price.target},
              {"basis", price.rates.basis},
              {"complete", price.complete()},
              {"cycles_per_step", price.cycles},
              {"launches_per_step", price.launches},
              {"transfer_bytes_per_step", price.transfer_bytes},
              {"cycle_seconds", price.cycle_seconds()},
              {"launch_seconds", price.launches_seconds()},
              {"transfer_seconds", price.transfer_seconds()},
              {"step_seconds", price.seconds()},
              {"tok_s", price.tokens_per_second()},
              {"peak_share", price.peak_share()},
              {"peak_flops_per_second", price.rates.flops_per_second},
              {"parts", price.parts},
              {"compiled_parts", price.compiled_parts},
              {"scheduled_parts", price.scheduled_parts},
              {"graphs", Json::array()}};
  if (price.all_scheduled()) {
    out["scheduled_cycles_per_step"] = price.scheduled_cycles;
    out["scheduled_step_seconds"] = price.scheduled_seconds();
    out["scheduled_tok_s"] = price.scheduled_tokens_per_second();
  }
  if (price.compared_forecast > 0) {
    out["scheduled_over_estimate"] = price.compared_scheduled / price.compared_forecast;
  }
  for (const GraphPrice& graph : price.graphs) {
    out["graphs"].push_back({{"group", graph.group},
                             {"graph", graph.graph},
                             {"calls_per_step", graph.calls},
                             {"launches_per_call", graph.launches},
                             {"host_parts", graph.host_parts},
                             {"unpriced", graph.unpriced},
                             {"cycles_per_call", graph.cycles},
                             {"compiled_parts", graph.compiled_parts},
                             {"scheduled_parts", graph.scheduled_parts},
                             {"scheduled_cycles_per_call", graph.scheduled_cycles},
                             {"flops_per_call", graph.flops},
                             {"bytes_per_call", graph.bytes}});
  }
  return out;
}

void print_price(const StepPrice& price) {
  const auto column = [](int width, const std::string& text) {
    std::cout << std::right << std::setw(width) << text;
  };
  std::cout << "\nestimate for " << price.target << ": " << price.rates.basis << "\n"
            << std::left << std::setw(12) << "group" << std::setw(18) << "graph";
  for (const char* title : {"calls", "launches"}) column(9, title);
  column(14, "cycles/call");
  column(11, "MiB/call");
  for (const char* title : {"of step", "of peak"}) column(9, title);
  std::cout << "\n";
  for (const GraphPrice& graph : price.graphs) {
    std::cout << std::left << std::setw(12) << graph.group << std::setw(18) << graph.graph;
    column(9, std::to_string(graph.calls));
    column(9, std::to_string(graph.launches));
    column(14, rounded(graph.cycles, 0));
    column(11, rounded(static_cast<double>(graph.bytes) / (1 << 20), 1));
    const double seconds = static_cast<double>(graph.calls) *
                           (graph.cycles / price.rates.cycles_per_second +
                            static_cast<double>(graph.launches) * price.launch_seconds);
    column(9, percent(seconds / price.seconds()));
    column(9, percent(share_of_peak(price, graph.flops, graph.cycles)));
    std::cout << "\n";
    if (graph.host_parts > 0) {
      std::cout << "    not in it: parts on the host: " << graph.host_parts << "\n";
    }
    for (const std::string& line : graph.unpriced) std::cout << "    not in it: " << line << "\n";
  }
  std::cout << "step: " << rounded(price.cycles * 1e-6, 3) << " M cycles ("
            << rounded(price.cycle_seconds() * 1e3, 3) << " ms), " << price.launches
            << " launches (" << rounded(price.launches_seconds() * 1e3, 3) << " ms), "
            << rounded(static_cast<double>(price.transfer_bytes) / (1 << 20), 1)
            << " MiB to and from the device (" << rounded(price.transfer_seconds() * 1e3, 3)
            << " ms): " << rounded(price.seconds() * 1e3, 3) << " ms, "
            << (price.complete() ? "" : "at most ") << rounded(price.tokens_per_second(), 0)
            << " tok/s, " << percent(price.peak_share()) << " of "
            << rounded(price.rates.flops_per_second * 1e-12, 0) << " TFLOP/s\n";
  print_compiled(price);
}

}  // namespace npu
