// An estimate is an entry of the cache whose blob is the number in decimal.
#include "compile/estimate.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>

#include "base/log.h"
#include "base/thread_pool.h"
#include "compile/distinct.h"
#include "ir/text.h"

namespace npu {
namespace {

using Kind = CompileOutcome::Kind;

std::optional<Result<double>> read_entry(const std::optional<CompileOutcome>& outcome) {
  if (!outcome) return std::nullopt;
  if (!outcome->built()) {
    // As make_entry() has it: "where: what…".
    const std::string& words = outcome->reason;
    const size_t colon = words.find(": ");
    if (colon == std::string::npos) return std::nullopt;
    return Result<double>(
        Error{ErrorKind::kBadInput, words.substr(0, colon), words.substr(colon + 2), "", ""});
  }
  double cycles = 0;
  const char* const end = outcome->blob.data() + outcome->blob.size();
  const auto [stop, error] = std::from_chars(outcome->blob.data(), end, cycles);
  if (error != std::errc() || stop != end || !(cycles > 0) || !std::isfinite(cycles)) {
    return std::nullopt;
  }
  return Result<double>(cycles);
}

CompileOutcome make_entry(const Result<double>& cycles) {
  CompileOutcome outcome;
  if (!cycles) {
    outcome.reason = cycles.error().text();
    return outcome;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", cycles.value());
  outcome.kind = Kind::kBuilt;
  outcome.blob = text;
  return outcome;
}

}  // namespace

Result<std::vector<Result<double>>> estimate_parts(std::span<const Graph* const> parts,
                                                   Backend& backend, const CompileOptions& options,
                                                   const CompileSettings& settings) {
  Result<std::string> compiler = backend.compiler_version();
  if (!compiler) return compiler.error();
  const Cache cache(settings.cache_dir);
  std::vector<CacheKey> keys;
  std::vector<std::optional<Result<double>>> found;
  std::vector<size_t> misses;
  for (size_t i = 0; i < parts.size(); ++i) {
    CacheKey key = part_key(*parts[i], print_graph(*parts[i]), backend, compiler.value(), options,
                            KeyUse::kForecast);
    key.add("use", "estimate");
    found.push_back(read_entry(cache.get(key)));
    if (!found.back()) misses.push_back(i);
    keys.push_back(std::move(key));
  }
  if (!misses.empty()) {
    log_info("compile", "asking for " + std::to_string(misses.size()) + " estimates, " +
                            std::to_string(parts.size() - misses.size()) + " are known");
  }
  CompileOptions asked = options;
  asked.jobs = std::max(1, settings.jobs);
  asked.seconds_limit = settings.seconds_limit;
  ThreadPool pool(asked.jobs);  // its threads only wait for children
  pool.run(static_cast<int64_t>(misses.size()), [&](int64_t number) {
    const size_t i = misses[static_cast<size_t>(number)];
    Result<double> cycles = backend.estimate_cycles(*parts[i], asked);
    if (cycles || cycles.error().kind == ErrorKind::kBadInput) {
      try {
        cache.put(keys[i], make_entry(cycles), "estimate");
      } catch (const UserError& e) {
        log_warn("cache", "not stored: " + e.error().text());
      }
    }
    found[i] = std::move(cycles);
  });
  std::vector<Result<double>> all;
  for (std::optional<Result<double>>& cycles : found) {
    if (!*cycles && cycles->error().kind == ErrorKind::kUsage) return cycles->error();
    all.push_back(std::move(*cycles));
  }
  return all;
}

}  // namespace npu
