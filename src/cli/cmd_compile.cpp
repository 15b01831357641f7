// npu-lora compile and plan: what a run needs compiled, before or without running it.
#include <algorithm>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/memory_room.h"
#include "cli/step_price.h"
#include "cli/training.h"

namespace npu {
namespace {

struct Planned {
  ModelConfig config;
  Prepared prepared;
  std::optional<Placement> placement;  // with --host-parts auto, when it is known
};

// Graphs of the training run that the same options make; needs the model's config only.
// `target`: what to compile for, where it is not the option's whole text.
Planned plan_training(const Options& options, const std::string& target = "") {
  if (options.flag("quiet")) set_log_level(LogLevel::kWarn);
  Planned out;
  HfModel model = open_model(options, /*with_weights=*/false);
  model.config.storage_dtype = stored_dtype(model);
  out.config = model.config;
  const LoraSpec lora = start_adapter(options, model.config).lora;
  SessionOptions session;
  if (options.list("data").empty()) {
    log_info("compile",
             "no --data, so the head takes all rows; train takes as few as its data needs");
    session = training_session(options, lora, model.config, nullptr, /*eval=*/true);
  } else {
    const TrainingData data = load_training_data(options, model);
    const Batcher batcher(data.train, batcher_options(options, model));
    session = training_session(options, lora, model.config, &batcher, !data.held_out.rows.empty());
  }
  if (!target.empty()) session.vendor["target"] = target;
  out.placement = recall_placement(out.config, session);
  out.prepared = prepare(out.config, session);
  return out;
}

struct GroupRow {
  std::string group, graph;
  size_t parts = 0, host_parts = 0;
  int64_t calls_per_step = 0;  // of the graph, per micro-batch
  double flops = 0;            // of one call
  std::string cut_note;
  std::vector<std::string> host_reasons;
  std::vector<PlannedPart> placed;
};

std::vector<GroupRow> group_rows(const ModelConfig& config, const Prepared& prepared) {
  std::vector<GroupRow> rows;
  for (const PlannedGraph& graph : prepared.plan.graphs) {
    GroupRow row{graph.group,    graph.name, graph.parts.size(), 0, 0, 0,
                 graph.cut_note, {},         graph.parts};
    row.calls_per_step = prepared.graphs.calls_per_step(graph.name, config.num_hidden_layers);
    row.flops = graph.graph.contraction_flops();
    for (const PlannedPart& part : graph.parts) {
      if (!part.on_host) continue;
      ++row.host_parts;
      row.host_reasons.push_back(part.host_reason);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

// What a micro-batch of one bucket comes to.
struct StepCost {
  int64_t launches = 0, layer_launches = 0;
  double flops = 0;
};

StepCost step_cost(const std::vector<GroupRow>& rows, const BucketGraphs& bucket) {
  StepCost cost;
  for (const GroupRow& row : rows) {
    if (row.graph != bucket.name(plain_name(row.graph))) continue;
    const auto parts = static_cast<int64_t>(row.parts);
    cost.launches += row.calls_per_step * parts;
    cost.flops += static_cast<double>(row.calls_per_step) * row.flops;
    const std::string_view name = plain_name(row.graph);
    if (name == kLayerForward || name == kLayerBackward) cost.layer_launches += parts;
  }
  return cost;
}

// What the head moves in a micro-batch whose rows with loss pass it once.
struct HeadBytes {
  int64_t to_device = 0, to_host = 0;
};

HeadBytes head_bytes(const ModelConfig& config, const ModelGraphs& graphs) {
  const LayerOptions& layer = graphs.options.layer;
  const int64_t rows_R = graphs.options.loss_rows, tokens = layer.batch * layer.seq_len;
  const auto chunks = static_cast<int64_t>(graphs.chunks.size());
  const auto compute = static_cast<int64_t>(dtype_bytes(layer.compute_dtype()));
  const int64_t picked = layer.arithmetic_head ? rows_R * tokens * compute : rows_R * 4;
  const int64_t d_h = rows_R * config.hidden_size * compute;
  const int64_t u = rows_R * config.hidden_size * (layer.arithmetic_head ? compute : 4);
  return {picked + d_h + chunks * rows_R * 4, chunks * (u + 3 * rows_R * 4)};
}

Json plan_json(const ModelConfig& config, const Prepared& prepared,
               const std::vector<GroupRow>& rows) {
  const Traits& traits = prepared.backend->traits();
  const MemoryEstimate memory = estimate_memory(config, prepared.graphs, prepacks(prepared));
  const MemoryRoom room = memory_room(traits);
  const auto [launches, layer_launches, flops] = step_cost(rows, prepared.graphs.longest());
  const LayerOptions& layer = prepared.graphs.options.layer;
  const int64_t tokens = layer.batch * layer.seq_len;
  const int64_t x_bytes =
      tokens * config.hidden_size * static_cast<int64_t>(dtype_bytes(layer.stream_dtype()));
  const int64_t rope_mask = static_cast<int64_t>(dtype_bytes(layer.compute_dtype())) * tokens *
                            (2 * config.head_dim + layer.seq_len);
  // Products at this machine's speed plus launches: a lower bound that leaves out all else.
  const double step_seconds = flops / host_matmul_rate(config, layer, prepared.options.threads) +
                              static_cast<double>(launches) * traits.launch_seconds;
  const int64_t adapter_bytes = memory.optimizer / 4;
  const HeadBytes head =
      prepared.graphs.options.train ? head_bytes(config, prepared.graphs) : HeadBytes{};
  Json out = {
      {"backend", traits.name},
      {"distinct_parts", prepared.plan.distinct.size()},
      {"launches_per_layer", layer_launches},
      {"launches_per_step", launches},
      {"bytes_h2d_per_step", x_bytes + rope_mask + adapter_bytes + head.to_device},
      {"bytes_d2h_per_step", adapter_bytes + head.to_host},
      {"device_bytes", traits.host_memory ? 0 : memory.total() - memory.optimizer},
      {"host_bytes", traits.host_memory ? memory.total() : memory.optimizer},
      {"flops_per_step", flops},
      {"estimated_step_seconds", step_seconds},
      {"estimated_tok_s", static_cast<double>(tokens) / step_seconds},
      {"launch_seconds_per_step", static_cast<double>(launches) * traits.launch_seconds},
      {"recompute", prepared.graphs.options.recompute == Recompute::kNone ? "none" : "layer"},
      {"memory_room", room.bytes},
      {"memory_fits", needed_bytes(memory, room) <= room.bytes},
      {"memory",
       {{"weights", memory.weights},
        {"prepacked", memory.prepacked},
        {"activations", memory.activations},
        {"saved", memory.saved},
        {"head", memory.head},
        {"optimizer", memory.optimizer}}}};
  for (const BucketGraphs& bucket : prepared.graphs.buckets) {
    const StepCost cost = step_cost(rows, bucket);
    out["buckets"].push_back({{"seq_len", bucket.seq_len},
                              {"loss_rows", bucket.loss_rows},
                              {"launches_per_step", cost.launches},
                              {"flops_per_step", cost.flops}});
  }
  out["groups"] = Json::array();
  for (const GroupRow& row : rows) {
    Json placed = Json::array();
    for (const PlannedPart& part : row.placed) {
      placed.push_back({{"name", part.name},
                        {"on_host", part.on_host},
                        {"compiled", prepared.plan.distinct[part.distinct].outcome.has_value()},
                        {"host_reason", part.host_reason},
                        {"cut_reason", part.cut_reason}});
    }
    out["groups"].push_back({{"group", row.group},
                             {"graph", row.graph},
                             {"parts", row.parts},
                             {"host_parts", row.host_parts},
                             {"cut", row.cut_note},
                             {"host_reasons", row.host_reasons},
                             {"placed", std::move(placed)},
                             {"calls_per_step", row.calls_per_step},
                             {"gflop_per_call", row.flops * 1e-9}});
  }
  return out;
}

void print_groups(const std::vector<GroupRow>& rows) {
  std::cout << "\n"
            << std::left << std::setw(12) << "group" << std::setw(18) << "graph" << std::right
            << std::setw(6) << "parts" << std::setw(9) << "on host" << std::setw(7) << "calls"
            << std::setw(12) << "GFLOP/call"
            << "\n";
  for (const GroupRow& row : rows) {
    std::cout << std::left << std::setw(12) << row.group << std::setw(18) << row.graph << std::right
              << std::setw(6) << row.parts << std::setw(9) << row.host_parts << std::setw(7)
              << row.calls_per_step << std::setw(12) << std::fixed << std::setprecision(3)
              << row.flops * 1e-9 << "\n";
    if (!row.cut_note.empty()) std::cout << "    cut: " << row.cut_note << "\n";
    for (const PlannedPart& part : row.placed) {
      if (!part.on_host && part.cut_reason.empty()) continue;
      std::cout << "    " << part.name << (part.on_host ? " on the host" : " on the device");
      if (!part.cut_reason.empty()) std::cout << "; cut: " << part.cut_reason;
      if (part.on_host && part.host_reason != part.cut_reason)
        std::cout << "; " << part.host_reason;
      std::cout << "\n";
    }
  }
}

void print_memory(const Json& json, const Traits& traits) {
  const auto mib = [](const Json& bytes) { return bytes.get<int64_t>() >> 20; };
  std::cout << "\nmemory MiB: weights " << mib(json["memory"]["weights"]) << ", prepacked "
            << mib(json["memory"]["prepacked"]) << ", activations "
            << mib(json["memory"]["activations"]) << ", kept for backward "
            << mib(json["memory"]["saved"]) << " (recompute "
            << json["recompute"].get<std::string>() << "), head " << mib(json["memory"]["head"])
            << ", optimizer " << mib(json["memory"]["optimizer"]) << "; "
            << mib(json["memory_room"]) << " " << memory_room(traits).where
            << "\nmoved a step, KiB: to the device "
            << (json["bytes_h2d_per_step"].get<int64_t>() >> 10) << ", back "
            << (json["bytes_d2h_per_step"].get<int64_t>() >> 10) << "\n";
}

// On each target, which has a cut of its own. `first` is planned for the first of them.
std::vector<StepPrice> prices_of(const Options& options, const std::vector<std::string>& targets,
                                 const Planned& first, const Json& json) {
  const int64_t moved =
      json["bytes_h2d_per_step"].get<int64_t>() + json["bytes_d2h_per_step"].get<int64_t>();
  std::vector<StepPrice> prices;
  for (const std::string& target : targets) {
    std::optional<StepPrice> price;
    if (&target == &targets.front()) {
      price = price_step(first.config, first.prepared, moved);
    } else {
      Planned other = plan_training(options, target);
      recall(other.prepared);
      price = price_step(other.config, other.prepared, moved);
    }
    if (price) prices.push_back(std::move(*price));
  }
  return prices;
}

}  // namespace

int cmd_plan(const Options& options) {
  std::vector<std::string> targets = {""};
  if (options.given("target")) targets = options.words("target");
  if (targets.empty()) fail(ErrorKind::kUsage, "--target", "needs a name");
  Planned planned = plan_training(options, targets.front());
  recall(planned.prepared);
  const std::vector<GroupRow> rows = group_rows(planned.config, planned.prepared);
  Json json = plan_json(planned.config, planned.prepared, rows);
  if (planned.placement) json["placement"] = Json::parse(print_evidence(*planned.placement));
  const std::vector<StepPrice> prices = prices_of(options, targets, planned, json);
  for (const StepPrice& price : prices) json["estimates"].push_back(price_json(price));
  const Traits& traits = planned.prepared.backend->traits();
  warn_of_memory(planned.config, planned.prepared);
  if (options.flag("json")) {
    std::cout << json.dump(2) << "\n";
    return 0;
  }
  std::cout << "backend " << json["backend"].get<std::string>() << ", " << json["distinct_parts"]
            << " distinct parts, " << json["launches_per_layer"] << " launches a layer, "
            << json["launches_per_step"] << " a micro-batch of "
            << planned.prepared.graphs.options.layer.batch << " x "
            << planned.prepared.graphs.options.layer.seq_len << " tokens\n";
  if (json["buckets"].size() > 1) {
    for (const Json& bucket : json["buckets"]) {
      std::cout << "  sequences of " << bucket["seq_len"] << ": " << bucket["loss_rows"]
                << " rows pass the head at a time, " << std::fixed << std::setprecision(1)
                << bucket["flops_per_step"].get<double>() * 1e-9 << " GFLOP a micro-batch\n";
    }
  }
  print_groups(rows);
  if (planned.placement) {
    std::cout << "\nplacement, measured on " << planned.placement->machine << ":\n";
    for (const std::string& line : describe_placement(*planned.placement))
      std::cout << "  " << line << "\n";
  }
  print_memory(json, traits);
  for (const StepPrice& price : prices) print_price(price);
  if (!prices.empty()) return 0;
  std::cout << "estimate (products alone, at the host's speed): " << std::setprecision(3)
            << json["estimated_step_seconds"].get<double>() << " s a micro-batch, "
            << std::setprecision(0) << json["estimated_tok_s"].get<double>() << " tok/s\n";
  return 0;
}

int cmd_compile(const Options& options) {
  const Cache cache(cache_directory(options));
  if (options.has("import")) cache.import_bundle(options.text("import"));  // cuts lie in it too
  Planned planned = plan_training(options);
  const CompileReport report = compile(planned.prepared);
  if (options.has("export")) {
    cache.export_bundle(report.cache_digests, options.text("export"));
  }
  report_compile(report, options.flag("quiet") || options.flag("json"));
  if (options.flag("json")) {
    Json json = {{"built", report.built},
                 {"cached", report.cached},
                 {"failed", Json::array()},
                 {"cut", Json::array()},
                 {"seconds", report.seconds}};
    for (const auto& failure : report.failed) {
      json["failed"].push_back(
          {{"part", failure.part}, {"outcome", failure.outcome}, {"reason", failure.reason}});
    }
    for (const auto& cut : report.cuts) {
      json["cut"].push_back({{"part", cut.part}, {"reason", cut.reason}, {"pieces", cut.pieces}});
    }
    std::cout << json.dump(2) << "\n";
  } else {
    std::cout << "built " << report.built << ", cached " << report.cached << ", cut "
              << report.cuts.size() << ", failed " << report.failed.size() << "\n";
  }
  if (report.not_stored > 0) {  // keeping parts is what this command is for
    fail(ErrorKind::kRetriable, cache_directory(options).string(),
         "could not keep " + std::to_string(report.not_stored) + " compiled parts", "",
         "choose another --cache-dir");
  }
  return report.failed.empty() ? 0 : static_cast<int>(ErrorKind::kCheckFailed);
}

}  // namespace npu
