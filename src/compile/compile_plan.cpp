// Compiling a plan: what the cache holds is taken, the rest goes to children side by side, and what
// fails goes to the host.
#include <algorithm>
#include <chrono>
#include <mutex>

#include "base/log.h"
#include "base/thread_pool.h"
#include "compile/plan.h"
#include "compile/worker.h"

namespace npu {
namespace {

using Kind = CompileOutcome::Kind;

// Facts of the backend that its compiled code may depend on.
std::string traits_text(const Traits& traits) {
  const BackendLimits& limits = traits.limits;
  return "compute " + std::string(dtype_name(traits.compute_dtype)) +
         (traits.deterministic ? ", deterministic" : "") +
         (traits.host_memory ? ", host memory" : "") + ", limits " +
         std::to_string(limits.contractions) + "/" + std::to_string(limits.nodes) + "/" +
         std::to_string(limits.inputs) + "/" + std::to_string(limits.outputs);
}

CacheKey key_of(const DistinctPart& part, const Traits& traits, const std::string& compiler,
                const CompileOptions& options) {
  CacheKey key;
  key.add("part", part.text);
  key.add("backend", traits.name);
  key.add("compiler", compiler);
  key.add("traits", traits_text(traits));
  key.add("threads", options.threads == 0 ? "all" : std::to_string(options.threads));
  // A vendor option may be given more than once: its values together are the option's value.
  std::vector<std::pair<std::string, std::string>> vendor;
  for (const auto& [name, value] : options.vendor) {
    const auto same =
        std::find_if(vendor.begin(), vendor.end(),
                     [&, &wanted = name](const auto& v) { return v.first == wanted; });
    if (same == vendor.end()) {
      vendor.emplace_back(name, value);
    } else {
      same->second += " " + value;
    }
  }
  for (const auto& [name, value] : vendor) key.add("option " + name, value);
  return key;
}

// Whether a failure from the cache also counts under today's limits.
bool still_holds(const CompileOutcome& outcome, const CompileSettings& settings) {
  const auto wider = [](auto now, auto then) { return then > 0 && (now == 0 || now > then); };
  switch (outcome.kind) {
    case Kind::kTimedOut:
      return !wider(settings.seconds_limit, outcome.seconds_limit);
    case Kind::kOutOfMemory:
      return !wider(settings.memory_limit_bytes, outcome.memory_limit_bytes);
    default:
      return true;
  }
}

class PlanCompiler {
 public:
  PlanCompiler(Plan& plan, Backend& backend, const CompileOptions& options,
               const CompileSettings& settings)
      : plan_(plan),
        backend_(backend),
        options_(options),
        settings_(settings),
        cache_(settings.cache_dir) {}

  CompileReport run() {
    const auto start = std::chrono::steady_clock::now();
    find_jobs();
    std::vector<size_t> misses = take_from_cache();
    if (settings_.expect_cached && !misses.empty()) fail_for_misses(misses);
    compile(misses);
    report_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (const Job& job : jobs_) settle(job);
    return std::move(report_);
  }

 private:
  struct Job {
    size_t distinct;
    CacheKey key;
  };

  DistinctPart& part(const Job& job) { return plan_.distinct[job.distinct]; }

  // Distinct parts that some graph runs on the device.
  void find_jobs() {
    std::vector<bool> wanted(plan_.distinct.size(), false);
    for (const PlannedGraph& graph : plan_.graphs) {
      for (const PlannedPart& p : graph.parts)
        wanted[p.distinct] = wanted[p.distinct] || !p.on_host;
    }
    std::string compiler;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i] || plan_.distinct[i].outcome) continue;
      if (compiler.empty()) compiler = backend_.compiler_version().take();
      CacheKey key = key_of(plan_.distinct[i], backend_.traits(), compiler, options_);
      plan_.distinct[i].cache_digest = key.digest();
      jobs_.push_back({i, std::move(key)});
    }
  }

  // Numbers of the jobs that the cache could not settle.
  std::vector<size_t> take_from_cache() {
    std::vector<size_t> misses;
    for (size_t i = 0; i < jobs_.size(); ++i) {
      std::optional<CompileOutcome> outcome = cache_.get(jobs_[i].key);
      const std::string& name = part(jobs_[i]).first_use;
      if (outcome && still_holds(*outcome, settings_)) {
        log(LogLevel::kDebug, "cache", "hit: " + name);
        part(jobs_[i]).outcome = std::move(outcome);
        progress(name);
        continue;
      }
      misses.push_back(i);
      if (!log_channel_open("cache")) continue;  // explaining reads the whole cache
      log(LogLevel::kDebug, "cache", "miss: " + name + ": " + explain(jobs_[i], outcome));
    }
    return misses;
  }

  std::string explain(const Job& job, const std::optional<CompileOutcome>& outcome) {
    if (outcome) return std::string(outcome_name(outcome->kind)) + " under narrower limits";
    return cache_.explain_miss(job.key, part(job).first_use, settings_.origin);
  }

  [[noreturn]] void fail_for_misses(const std::vector<size_t>& misses) {
    const Job& first = jobs_[misses[0]];
    fail(ErrorKind::kCheckFailed, "--expect-cached",
         "every part must be in the cache " + settings_.cache_dir.string(),
         std::to_string(misses.size()) + " of " + std::to_string(jobs_.size()) +
             " missing, first " + part(first).first_use + ": " + explain(first, std::nullopt),
         "compile without --expect-cached first, with the same options");
  }

  void compile(const std::vector<size_t>& misses) {
    if (misses.empty()) return;
    const bool in_child = !settings_.worker.empty() && !backend_.compiles_in_process();
    const auto count = static_cast<int64_t>(misses.size());
    // The workers only wait for their children, so they cost nothing beside them.
    ThreadPool pool(in_child ? static_cast<int>(std::clamp<int64_t>(settings_.jobs, 1, count)) : 1);
    pool.run(count, [&](int64_t i) {
      const Job& job = jobs_[misses[static_cast<size_t>(i)]];
      JobResult result =
          in_child ? compile_in_child(backend_.traits().name, part(job).text, options_, settings_)
                   : compile_here(backend_, part(job).graph, options_);
      if (result.lasting) store(job, result.outcome);
      part(job).outcome = std::move(result.outcome);
      progress(part(job).first_use);
    });
  }

  void store(const Job& job, const CompileOutcome& outcome) {
    try {
      cache_.put(job.key, outcome, part(job).first_use, settings_.origin);
    } catch (const UserError& e) {
      log_warn("cache", "not stored: " + e.error().text());
    }
  }

  void progress(std::string_view name) {
    if (!settings_.progress) return;
    const std::lock_guard lock(progress_mutex_);
    settings_.progress(++done_, jobs_.size(), name);
  }

  // Counts the outcome, and sends the uses of a part that failed to the host.
  void settle(const Job& job) {
    const CompileOutcome& outcome = *part(job).outcome;
    if (outcome.built()) {
      ++(outcome.from_cache ? report_.cached : report_.built);
      return;
    }
    const std::string name(outcome_name(outcome.kind));
    report_.failed.push_back({part(job).first_use, name, outcome.reason});
    const std::string reason = name + ": " + outcome.reason;
    log_warn("compile", part(job).first_use + " goes to the host: " + reason);
    for (PlannedGraph& graph : plan_.graphs) {
      for (PlannedPart& p : graph.parts) {
        if (p.distinct != job.distinct || p.on_host) continue;
        p.on_host = true;
        p.host_reason = reason;
      }
    }
  }

  Plan& plan_;
  Backend& backend_;
  const CompileOptions& options_;
  const CompileSettings& settings_;
  Cache cache_;
  std::vector<Job> jobs_;
  CompileReport report_;
  std::mutex progress_mutex_;
  size_t done_ = 0;
};

}  // namespace

CompileReport compile_plan(Plan& plan, Backend& backend, const CompileOptions& options,
                           const CompileSettings& settings) {
  return PlanCompiler(plan, backend, options, settings).run();
}

}  // namespace npu
