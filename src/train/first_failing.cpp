// Looking for what a compiler fails on.
#include "train/first_failing.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/thread_pool.h"
#include "compile/distinct.h"
#include "compile/worker.h"
#include "ir/text.h"

namespace npu {
namespace {

using Kind = CompileOutcome::Kind;

constexpr std::string_view kUnsupported = "unsupported: ";

// A graph with one node less compiles, so its last node completes the failure; where the backend
// itself points at an op, that one is meant.
std::string failing_op(const FailingPart& part) {
  const std::string& reason = part.smallest.outcome.reason;
  if (!reason.starts_with(kUnsupported)) return part.ops.back();
  const std::string rest = reason.substr(kUnsupported.size());
  return rest.substr(0, rest.find(':'));
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

}  // namespace

TrialCompiler::TrialCompiler(Backend& backend, const CompileOptions& options,
                             const CompileSettings& settings)
    : backend_(backend),
      options_(options),
      settings_(settings),
      compiler_(backend.compiler_version().take()),
      cache_(settings.cache_dir) {
  if (auto problem = backend.cannot_compile(options)) throw UserError(std::move(*problem));
}

double TrialCompiler::trial_seconds_limit() const {
  if (longest_seconds_ <= 0) return settings_.seconds_limit;
  const double limit = std::max(10.0, 10 * longest_seconds_);
  return settings_.seconds_limit > 0 ? std::min(settings_.seconds_limit, limit) : limit;
}

CompileOutcome TrialCompiler::run(const Graph& graph, const std::string& text, double seconds_limit,
                                  bool& lasting) {
  CompileSettings settings = settings_;
  settings.seconds_limit = seconds_limit;
  const bool in_child = !settings.worker.empty() && !backend_.compiles_in_process();
  JobResult result;
  if (in_child) {
    result = compile_in_child(backend_.traits().name, text, options_, settings);
  } else {
    const std::lock_guard lock(backend_mutex_);
    result = compile_here(backend_, graph, options_);
  }
  lasting = result.lasting;
  return std::move(result.outcome);
}

std::optional<CompileOutcome> TrialCompiler::unsupported(const Graph& graph) {
  const std::lock_guard lock(backend_mutex_);
  const std::string reason = unsupported_node(backend_, graph, options_);
  if (reason.empty()) return std::nullopt;
  CompileOutcome outcome;
  outcome.kind = Kind::kRejected;
  outcome.reason = std::string(kUnsupported) + reason;
  return outcome;
}

void TrialCompiler::store(const CacheKey& key, const CompileOutcome& outcome) {
  try {
    cache_.put(key, outcome, "diagnose");
  } catch (const UserError& e) {
    const std::lock_guard lock(backend_mutex_);
    if (!std::exchange(warned_, true)) log_warn("cache", "not stored: " + e.error().text());
  }
}

CompileOutcome TrialCompiler::build(const Graph& graph) {
  if (auto outcome = unsupported(graph)) return std::move(*outcome);
  bool lasting = true;
  return run(graph, print_graph(graph), settings_.seconds_limit, lasting);
}

CompileOutcome TrialCompiler::compile(const Graph& graph, double seconds_limit) {
  if (auto outcome = unsupported(graph)) return std::move(*outcome);
  const std::string text = print_graph(graph);
  CacheKey key = part_key(graph, text, backend_, compiler_, options_);
  key.add("use", "diagnose");
  CompileSettings settings = settings_;
  settings.seconds_limit = seconds_limit;
  if (auto known = cache_.get(key); known && still_holds(*known, settings)) {
    return std::move(*known);
  }
  bool lasting = true;
  CompileOutcome outcome = run(graph, text, seconds_limit, lasting);
  if (outcome.built()) {
    double longest = longest_seconds_;
    while (outcome.seconds > longest &&
           !longest_seconds_.compare_exchange_weak(longest, outcome.seconds)) {
    }
    outcome.blob = Blob();  // only the verdict is of use
  }
  if (lasting) store(key, outcome);
  return outcome;
}

size_t find_part(const Plan& plan, const std::string& name) {
  std::string known;
  for (const PlannedGraph& graph : plan.graphs) {
    for (size_t i = 0; i < graph.parts.size(); ++i) {
      if (graph.parts[i].name == name) return graph.parts[i].distinct;
      known += (known.empty() ? "" : ", ") + graph.parts[i].name;
    }
  }
  fail(ErrorKind::kUsage, "part", "no part of this name", "'" + name + "'", "known: " + known);
}

std::vector<FailingPart> first_failing_nodes(const Plan& plan, const std::string& only,
                                             TrialCompiler& compiler, double seconds_limit,
                                             const ShrinkOptions& options) {
  std::vector<size_t> wanted;
  if (!only.empty()) {
    wanted.push_back(find_part(plan, only));
  } else {
    for (size_t i = 0; i < plan.distinct.size(); ++i) wanted.push_back(i);
  }
  std::vector<CompileOutcome> outcomes(wanted.size());
  ThreadPool pool(std::clamp(options.jobs, 1, static_cast<int>(wanted.size())));
  pool.run(static_cast<int64_t>(wanted.size()), [&](int64_t i) {
    const auto n = static_cast<size_t>(i);
    outcomes[n] = compiler.compile(plan.distinct[wanted[n]].graph, seconds_limit);
  });
  std::vector<FailingPart> failing;
  for (size_t n = 0; n < wanted.size(); ++n) {
    const DistinctPart& distinct = plan.distinct[wanted[n]];
    if (outcomes[n].built()) continue;
    log_info("diagnose", distinct.first_use + " " + std::string(outcome_name(outcomes[n].kind)) +
                             " (" + seconds_text(outcomes[n].seconds) + "): " + outcomes[n].reason +
                             "; looking for the smallest such graph");
    FailingPart part;
    part.part = distinct.first_use;
    part.group = distinct.group;
    part.uses = distinct.uses;
    part.nodes = distinct.graph.nodes().size() - distinct.graph.inputs().size();
    const auto compile = [&](const Graph& graph) {
      return compiler.compile(graph, compiler.trial_seconds_limit());
    };
    part.smallest = shrink(distinct.graph, outcomes[n], compile, options);
    // A hang was searched under a narrower limit: the last word is that of the full one.
    if (part.smallest.outcome.kind == Kind::kTimedOut) {
      part.smallest.outcome = compiler.compile(part.smallest.graph, seconds_limit);
      ++part.smallest.compiles;
      if (part.smallest.outcome.built()) part.smallest = {distinct.graph, outcomes[n], 0, false};
    }
    for (const Node& node : part.smallest.graph.nodes()) {
      if (!node.is_input()) part.ops.emplace_back(node.op->name);
    }
    part.op = failing_op(part);
    part.outcome = std::move(outcomes[n]);
    failing.push_back(std::move(part));
  }
  return failing;
}

}  // namespace npu
