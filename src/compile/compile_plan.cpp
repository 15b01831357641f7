// Compiling a plan: what the cache holds is taken, the rest goes to children side by side, and what
// fails is cut or goes to the host.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "compile/adaptive_cut.h"
#include "compile/plan.h"
#include "compile/worker.h"

namespace npu {
namespace {

using Kind = CompileOutcome::Kind;

constexpr size_t kCompilerShown = 240;  // Cache::compilers_of() reads it back

// Facts of the backend that its compiled code may depend on.
std::string traits_text(const Traits& traits) {
  const BackendLimits& limits = traits.limits;
  return "compute " + std::string(dtype_name(traits.compute_dtype)) +
         (traits.deterministic ? ", deterministic" : "") +
         (traits.host_memory ? ", host memory" : "") + ", limits " +
         std::to_string(limits.contractions) + "/" + std::to_string(limits.nodes) + "/" +
         std::to_string(limits.inputs) + "/" + std::to_string(limits.outputs);
}

}  // namespace

CacheKey part_key(const Graph& part, std::string_view text, Backend& backend,
                  std::string_view compiler, const CompileOptions& options, KeyUse use) {
  const Traits& traits = backend.traits();
  CacheKey key;
  key.add("part", text);
  key.add("backend", traits.code_name.empty() ? traits.name : traits.code_name);
  key.add("compiler", backend.compiler_of(part, options).value_or(std::string(compiler)),
          kCompilerShown);
  key.add("traits", traits_text(traits));
  key.add("threads", options.threads == 0 ? "all" : std::to_string(options.threads));
  // A vendor option may be given more than once: its values together are the option's value.
  VendorOptions vendor;
  for (const auto& [name, value] : backend.key_options(options, use)) {
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

namespace {

class PlanCompiler {
 public:
  PlanCompiler(Plan& plan, Backend& backend, const CompileOptions& options,
               const CompileSettings& settings)
      : plan_(plan),
        backend_(backend),
        options_(options),
        settings_(settings),
        cut_(plan, backend, options, settings.adaptive_cut),
        cache_(settings.cache_dir) {}

  CompileReport run() {
    compiler_ = cut_.open().empty() ? "" : backend_.compiler_version().take();
    take_from_cache();
    const std::vector<size_t> misses = cut_.open();
    if (settings_.expect_cached && !misses.empty()) fail_for_misses(misses);
    compile(misses.size());
    for (const size_t part : cut_.open()) {
      cut_.not_tried(part, budget_reason());
      report_.lasting = false;
    }
    return finish();
  }

  // Without compiling.
  CompileReport recall() {
    Result<std::string> compiler = backend_.compiler_version();
    if (compiler) {
      compiler_ = std::move(compiler.value());
      take_from_cache();
    }
    return finish();
  }

 private:
  // What one compile needs to know, apart from the plan, which grows meanwhile.
  struct Job {
    size_t distinct;
    std::string name;
    CacheKey key;
    Graph graph;
    std::string text;
  };

  Job job_of(size_t distinct) {
    DistinctPart& part = plan_.distinct[distinct];
    CacheKey key = part_key(part.graph, part.text, backend_, compiler_, options_);
    part.cache_digest = key.digest();
    return {distinct, part.first_use, std::move(key), part.graph, part.text};
  }

  // The cache's word on a part, if it holds today; `stale` gets one that does not.
  std::optional<CompileOutcome> cached(const Job& job, std::optional<CompileOutcome>& stale) const {
    std::optional<CompileOutcome> outcome = cache_.get(job.key);
    if (outcome && still_holds(*outcome, settings_)) {
      log(LogLevel::kDebug, "cache", "hit: " + job.name);
      return outcome;
    }
    stale = std::move(outcome);
    if (log_channel_open("cache")) {  // explaining reads the whole cache
      log(LogLevel::kDebug, "cache", "miss: " + job.name + ": " + explain(job, stale));
    }
    return std::nullopt;
  }

  std::string explain(const Job& job, const std::optional<CompileOutcome>& stale) const {
    if (stale) return std::string(outcome_name(stale->kind)) + " under narrower limits";
    return cache_.explain_miss(job.key, job.name, settings_.origin);
  }

  // Until it has nothing to say on what the cut still needs.
  void take_from_cache() {
    for (bool news = true; news;) {
      news = false;
      for (const size_t part : cut_.open()) {
        if (!missed_.emplace(part, std::nullopt).second) continue;
        const Job job = job_of(part);
        std::optional<CompileOutcome> outcome = cached(job, missed_[part]);
        if (!outcome) continue;
        news = true;
        record(job, {std::move(*outcome), true});
      }
    }
  }

  [[noreturn]] void fail_for_misses(const std::vector<size_t>& misses) {
    const Job first = job_of(misses[0]);
    fail(ErrorKind::kCheckFailed, "--expect-cached",
         "every part must be in the cache " + settings_.cache_dir.string(),
         std::to_string(misses.size()) + " of " + std::to_string(misses.size() + done_) +
             " missing, first " + first.name + ": " + explain(first, missed_[misses[0]]),
         "compile without --expect-cached first, with the same options");
  }

  void compile(size_t misses) {
    if (misses == 0) return;
    if (auto problem = backend_.cannot_compile(options_)) throw UserError(std::move(*problem));
    in_child_ = !settings_.worker.empty() && !backend_.compiles_in_process();
    if (in_child_) remove_abandoned_temp_dirs();  // of compiles that were killed
    // The workers only wait for their children, so they cost nothing beside them. More than there
    // are misses may get work: each part that fails brings two.
    const int workers = in_child_ ? std::max(1, settings_.jobs) : 1;
    ThreadPool pool(workers);
    pool.run(workers, [this](int64_t) { work(); });
  }

  // Takes parts that the cut needs until there are none and none can come.
  void work() {
    std::unique_lock lock(mutex_);
    try {
      while (!stopped_) {
        const std::optional<size_t> part = next();
        if (!part && running_.empty()) break;
        if (!part) {
          changed_.wait(lock);
          continue;
        }
        running_.insert(*part);
        const bool known_missing = missed_.contains(*part);
        const Job job = job_of(*part);
        const double seconds = seconds_left();
        lock.unlock();
        JobResult result = settle(job, known_missing, seconds);
        lock.lock();
        running_.erase(*part);
        record(job, std::move(result));
        changed_.notify_all();
      }
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      stopped_ = true;
      changed_.notify_all();
      throw;
    }
    changed_.notify_all();
  }

  std::optional<size_t> next() {
    if (settings_.seconds_budget > 0 && seconds_left() <= 0) return std::nullopt;
    for (const size_t part : cut_.open()) {
      if (!running_.contains(part)) return part;
    }
    return std::nullopt;
  }

  // Of the budget; infinite without one.
  double seconds_left() const {
    if (settings_.seconds_budget <= 0) return std::numeric_limits<double>::infinity();
    return settings_.seconds_budget - (seconds_now() - start_);
  }

  std::string budget_reason() const {
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%g", settings_.seconds_budget);
    return std::string("not compiled: the ") + seconds + " s of --compile-budget were spent";
  }

  JobResult settle(const Job& job, bool known_missing, double seconds) {
    std::optional<CompileOutcome> stale;
    if (!known_missing) {  // a piece that came up meanwhile
      if (auto outcome = cached(job, stale)) return {std::move(*outcome), true};
    }
    CompileSettings settings = settings_;
    if (std::isfinite(seconds) &&
        (settings.seconds_limit <= 0 || seconds < settings.seconds_limit)) {
      settings.seconds_limit = std::max(seconds, 1e-3);  // 0 would mean none
    }
    JobResult result = in_child_
                           ? compile_in_child(backend_.traits().name, job.text, options_, settings)
                           : compile_here(backend_, job.graph, options_);
    if (result.lasting) store(job, result.outcome);
    return result;
  }

  void store(const Job& job, const CompileOutcome& outcome) {
    try {
      cache_.put(job.key, outcome, job.name, settings_.origin);
    } catch (const UserError& e) {
      log_warn("cache", "not stored: " + e.error().text());
      ++not_stored_;
    }
  }

  void record(const Job& job, JobResult result) {
    CompileOutcome& outcome = result.outcome;
    report_.lasting = report_.lasting && result.lasting;
    if (result.lasting) report_.cache_digests.push_back(job.key.digest());
    if (outcome.built()) {
      ++(outcome.from_cache ? report_.cached : report_.built);
      cut_.built(job.distinct);
    } else {
      cut_.failed(job.distinct, std::string(outcome_name(outcome.kind)) + ": " + outcome.reason,
                  result.lasting);
    }
    plan_.distinct[job.distinct].outcome = std::move(outcome);
    ++done_;
    if (settings_.progress) settings_.progress(done_, done_ + cut_.open().size(), job.name);
  }

  CompileReport finish() {
    cut_.apply(report_);
    report_.cache_digests.insert(report_.cache_digests.end(), plan_.cut_digests.begin(),
                                 plan_.cut_digests.end());
    report_.seconds = seconds_now() - start_;
    report_.not_stored = not_stored_;
    return std::move(report_);
  }

  Plan& plan_;
  Backend& backend_;
  const CompileOptions& options_;
  const CompileSettings& settings_;
  AdaptiveCut cut_;
  Cache cache_;
  const double start_ = seconds_now();
  std::string compiler_;
  CompileReport report_;
  // Parts that the cache could not settle, with what it has on them under narrower limits.
  std::map<size_t, std::optional<CompileOutcome>> missed_;
  size_t done_ = 0;

  bool in_child_ = false;
  std::atomic<size_t> not_stored_ = 0;
  std::mutex mutex_;  // guards all that workers share: plan, cut, report and what follows
  std::condition_variable changed_;
  std::set<size_t> running_;
  bool stopped_ = false;
};

}  // namespace

bool still_holds(const CompileOutcome& outcome, const CompileSettings& settings) {
  const auto wider = [](auto now, auto then) { return then > 0 && (now <= 0 || now > then); };
  switch (outcome.kind) {
    case Kind::kTimedOut:
      return !wider(settings.seconds_limit, outcome.seconds_limit);
    case Kind::kOutOfMemory:
      return !wider(settings.memory_limit_bytes, outcome.memory_limit_bytes);
    default:
      return true;
  }
}

CompileReport compile_plan(Plan& plan, Backend& backend, const CompileOptions& options,
                           const CompileSettings& settings) {
  return PlanCompiler(plan, backend, options, settings).run();
}

CompileReport recall_plan(Plan& plan, Backend& backend, const CompileOptions& options,
                          const CompileSettings& settings) {
  return PlanCompiler(plan, backend, options, settings).recall();
}

}  // namespace npu
