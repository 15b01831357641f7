// npu-lora diagnose: what a backend's compiler fails on, which compiled parts are wrong, and cases
// for the vendor.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "cli/check_report.h"
#include "cli/diagnose.h"
#include "cli/memory_room.h"
#include "ir/text.h"
#include "train/first_failing.h"

namespace npu {
namespace {

// All graphs of training and evaluation, placed on the device as a whole unless asked otherwise:
// what runs on the host by default is just what one wants to know about.
Prepared prepare_for_diagnosis(const Options& options) {
  const ModelConfig config = open_model(options, /*with_weights=*/false).config;
  SessionOptions session = session_options(options, lora_options(options), config);
  if (!options.has("host-parts") || session.auto_placement) session.host_groups.emplace();
  session.auto_placement = false;
  session.graphs.layer.batch = options.integer("batch", 1, 4096);
  session.graphs.layer.seq_len = options.integer("seq-len", 2, 1 << 20);
  const int64_t rows = session.graphs.layer.batch * session.graphs.layer.seq_len;
  const int64_t asked = options.integer("loss-rows");
  session.graphs.loss_rows = asked > 0 ? std::min(asked, rows) : rows;
  session.graphs.eval = true;
  // Memory of this host decides nothing here; keeping activations gives the larger graphs.
  session.graphs.recompute = options.choice("recompute", {"auto", "none", "layer"}) == "layer"
                                 ? Recompute::kLayer
                                 : Recompute::kNone;
  if (session.compile.memory_limit_bytes == 0) {
    session.compile.memory_limit_bytes = available_memory_bytes() / 4 * 3 / session.compile.jobs;
  }
  return prepare(config, session);
}

Json failing_json(const FailingPart& part) {
  return {{"part", part.part},
          {"group", part.group},
          {"uses", part.uses},
          {"nodes", part.nodes},
          {"outcome", outcome_name(part.outcome.kind)},
          {"reason", part.outcome.reason},
          {"log_tail", part.outcome.log_tail},
          {"op", part.op},
          {"smallest",
           {{"nodes", part.ops.size()},
            {"ops", part.ops},
            {"text", print_graph(part.smallest.graph)},
            {"outcome", outcome_name(part.smallest.outcome.kind)},
            {"reason", part.smallest.outcome.reason},
            {"compiles", part.smallest.compiles},
            {"minimal", part.smallest.minimal}}}};
}

void print_failing(const FailingPart& part) {
  const ShrunkGraph& smallest = part.smallest;
  std::cout << part.part << " (" << part.group << ", " << part.uses
            << (part.uses == 1 ? " use): " : " uses): ") << outcome_name(part.outcome.kind) << ": "
            << part.outcome.reason << "\n  op: " << part.op << "\n  smallest graph that "
            << "fails alike, " << part.ops.size() << " of " << part.nodes << " nodes, found in "
            << smallest.compiles << " compiles"
            << (smallest.minimal ? "" : " (more may go: --max-compiles)") << ", ops "
            << joined(part.ops) << ":\n";
  const std::string text = print_graph(smallest.graph);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::cout << "    " << text.substr(begin, end - begin) << "\n";
    begin = end + 1;
  }
}

void write_failing(const Options& options, const fs::path& directory, const FailingPart& part,
                   Backend& backend) {
  VendorCase content;
  content.graph = part.smallest.graph;
  const std::string outcome(outcome_name(part.smallest.outcome.kind));
  content.title = backend.traits().name + " fails to compile a graph of " +
                  std::to_string(part.ops.size()) + " nodes: " + outcome;
  content.facts = version_facts(backend);
  content.facts.insert(content.facts.end(),
                       {{"outcome", outcome},
                        {"reason", part.smallest.outcome.reason},
                        {"ops", joined(part.ops)},
                        {"cut from", part.part + " of " + std::to_string(part.nodes) + " nodes"},
                        {"found by", command_line(options, "diagnose")}});
  if (!part.smallest.outcome.log_tail.empty()) {
    content.details =
        "The compiler's last words:\n\n```\n" + part.smallest.outcome.log_tail + "\n```\n";
  }
  write_case(directory, content);
}

// Graphs that could not even be cut to the backend's limits.
std::vector<const PlannedGraph*> uncut_graphs(const Plan& plan) {
  std::vector<const PlannedGraph*> graphs;
  for (const PlannedGraph& graph : plan.graphs) {
    if (graph.host_reason.starts_with("can't be cut")) graphs.push_back(&graph);
  }
  return graphs;
}

}  // namespace

int diagnose_first_failing_node(const Options& options) {
  const Prepared prepared = prepare_for_diagnosis(options);
  Backend& backend = *prepared.backend;
  const CompileSettings& settings = prepared.options.compile;
  ShrinkOptions shrink_options;
  shrink_options.max_compiles = options.integer("max-compiles", 1);
  shrink_options.jobs = settings.jobs;
  const std::string only = options.has("part") ? options.text("part") : "";
  const fs::path out = options.has("out") ? options.text("out") : "";
  if (!out.empty()) check_case_directory(options, out);

  TrialCompiler compiler(backend, prepared.options.plan.compile, settings);
  const std::vector<FailingPart> failing =
      first_failing_nodes(prepared.plan, only, compiler, settings.seconds_limit, shrink_options);
  const auto uncut = uncut_graphs(prepared.plan);
  for (const FailingPart& part : failing) {
    if (!out.empty()) write_failing(options, out / part.part, part, backend);
  }
  const bool pass = failing.empty() && uncut.empty();
  const size_t tried = only.empty() ? prepared.plan.distinct.size() : 1;
  if (options.flag("json")) {
    Json json = {{"pass", pass},
                 {"backend", backend.traits().name},
                 {"compiler", backend.compiler_version().take()},
                 {"parts", tried},
                 {"failures", Json::array()},
                 {"uncut", Json::array()}};
    for (const FailingPart& part : failing) json["failures"].push_back(failing_json(part));
    for (const PlannedGraph* graph : uncut) {
      json["uncut"].push_back({{"graph", graph->name}, {"reason", graph->host_reason}});
    }
    std::cout << json.dump(2) << "\n";
  } else {
    for (const FailingPart& part : failing) print_failing(part);
    for (const PlannedGraph* graph : uncut) {
      std::cout << graph->name << ": " << graph->host_reason << "\n";
    }
    std::cout << backend.traits().name << ": " << failing.size() << " of " << tried
              << " distinct parts fail to compile\n";
  }
  return pass ? 0 : static_cast<int>(ErrorKind::kCheckFailed);
}

int cmd_diagnose(const Options& options) {
  if (options.flag("quiet") || options.flag("json")) set_log_level(LogLevel::kWarn);
  const std::vector<std::string>& words = options.positional();
  const std::string action = words.empty() ? "" : words[0];
  const auto takes = [&](size_t count) {
    if (words.size() == count) return;
    fail(ErrorKind::kUsage, "diagnose " + action,
         count == 1 ? "takes no further argument" : "takes one part",
         std::to_string(words.size() - 1) + " arguments",
         "repro PART, with PART as `npu-lora plan` and the logs name it: layer_fwd.2");
  };
  if (action == "first-failing-node") return takes(1), diagnose_first_failing_node(options);
  if (action == "compare-parts") return takes(1), diagnose_compare_parts(options);
  if (action == "repro") return takes(2), diagnose_repro(options, words[1]);
  fail(ErrorKind::kUsage, "diagnose", "needs an action", "'" + action + "'",
       "first-failing-node, compare-parts, or repro PART");
}

}  // namespace npu
