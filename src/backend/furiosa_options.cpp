// Which search, which compiler, and what of options, variables and files goes together.
#include "backend/furiosa_options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "backend/environment.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/thread_pool.h"

namespace npu {
namespace {

constexpr int kQuickShapes = 8;  // more gain next to nothing, and take 2 to 3 times as long
constexpr const char* kConfigVariable = "NPU_COMPILER_CONFIG_PATH";

std::string vendor_option(const CompileOptions& options, std::string_view name) {
  for (const auto& [option, value] : options.vendor) {
    if (option == name) return value;
  }
  return "";
}

Error usage(std::string option, std::string what, std::string got, std::string hint) {
  return {ErrorKind::kUsage, std::move(option), std::move(what), std::move(got), std::move(hint)};
}

// This compile's share of the CPUs, or of what RAYON_NUM_THREADS allows in all.
int thread_share(const CompileOptions& options) {
  int budget = std::atoi(environment("RAYON_NUM_THREADS").c_str());
  if (budget <= 0) budget = usable_cpus();
  return std::max(1, budget / std::max(1, options.jobs));
}

// Nothing given is 0.
Result<int> max_shapes_option(const CompileOptions& options) {
  const std::string shapes = vendor_option(options, "max-shapes");
  int max_shapes = 0;
  const auto [end, error] =
      std::from_chars(shapes.data(), shapes.data() + shapes.size(), max_shapes);
  if (!shapes.empty() && (error != std::errc() || end != shapes.data() + shapes.size() ||
                          max_shapes < 1 || max_shapes > 1 << 20)) {
    return usage("--max-shapes", "must be a whole number from 1", shapes,
                 "leave it out for the default");
  }
  return max_shapes;
}

// For TACTIC_HINT_PATH, of either compiler; "" for a full search.
std::string quick_hint(const FuriosaSettings& settings) {
  if (settings.search == FuriosaSearch::kFull) return "";
  return furiosa_quick_hint(settings.max_shapes);
}

// What can't be had together with a file of the user's own.
std::optional<Error> conflict_with_files(const FuriosaSettings& settings) {
  const std::string config = environment(kConfigVariable), hint = environment(kFuriosaHintVariable);
  if (settings.search == FuriosaSearch::kQuick) {
    if (hint.empty()) return std::nullopt;
    return usage("--search", "quick can't be had beside TACTIC_HINT_PATH", hint,
                 "unset the variable, or write its bounds into that file");
  }
  if (settings.tactic.empty() && settings.max_shapes == 0) return std::nullopt;
  const char* const option = settings.tactic.empty() ? "--max-shapes" : "--tactic";
  if (!config.empty()) {
    return usage(option, "can't be given beside NPU_COMPILER_CONFIG_PATH", config,
                 settings.tactic.empty() ? "write the hint into that file, or use --search quick"
                                         : "write the hint into that file");
  }
  if (!hint.empty() && settings.tactic.empty()) {
    return usage(option, "can't be given beside TACTIC_HINT_PATH without --tactic", hint,
                 "write max_num_unique_shapes into that file");
  }
  return std::nullopt;
}

}  // namespace

Result<FuriosaSettings> furiosa_settings(const CompileOptions& options) {
  FuriosaSettings settings;
  const std::string target = vendor_option(options, "target");
  Result<FuriosaTarget> found =
      find_furiosa_target(target.empty() ? kFuriosaDefaultTarget : target);
  if (!found) return found.error();
  settings.target = found.value();
  settings.tactic = vendor_option(options, "tactic");
  const Result<int> max_shapes = max_shapes_option(options);
  if (!max_shapes) return max_shapes.error();
  settings.max_shapes = max_shapes.value();

  const std::string search = vendor_option(options, "search");
  if (!search.empty() && search != "quick" && search != "full") {
    return usage("--search", "no such search", search, "use quick or full");
  }
  if (search == "quick" && !settings.tactic.empty()) {
    return usage("--tactic", "is for --search full", settings.tactic, "leave one of the two out");
  }
  const bool told = search == "full" || !settings.tactic.empty() ||
                    (search.empty() && !environment(kFuriosaHintVariable).empty());
  settings.full_by_config = !told && search.empty() && !environment(kConfigVariable).empty();
  const bool full = told || settings.full_by_config;
  settings.search = full ? FuriosaSearch::kFull : FuriosaSearch::kQuick;
  if (auto conflict = conflict_with_files(settings)) return std::move(*conflict);
  if (!full && settings.max_shapes == 0) settings.max_shapes = kQuickShapes;
  if (full && settings.max_shapes > 0 && settings.tactic.empty()) {
    settings.tactic = kFuriosaNumberedDefault;
  }
  return settings;
}

VendorOptions furiosa_key_options(const CompileOptions& options, KeyUse use) {
  const Result<FuriosaSettings> settings = furiosa_settings(options);
  if (!settings) return options.vendor;
  const auto& [target, search, tactic, max_shapes, by_config] = settings.value();
  VendorOptions key = {{"target", std::string(target.name)}};
  const bool quick = search == FuriosaSearch::kQuick;
  if (quick && use == KeyUse::kForecast) return key;
  if (use == KeyUse::kCode) key.emplace_back("search", quick ? "quick" : "full");
  if (quick) {
    key.emplace_back("max-shapes", std::to_string(max_shapes));
    key.emplace_back("hint", sha256_hex(quick_hint(settings.value())).substr(0, 16));
    return key;
  }
  if (!tactic.empty()) key.emplace_back("tactic", tactic);
  if (max_shapes > 0) key.emplace_back("max-shapes", std::to_string(max_shapes));
  return key;
}

Result<TccJob> furiosa_tcc_job(const CompileOptions& options) {
  const Result<FuriosaSettings> settings = furiosa_settings(options);
  if (!settings) return settings.error();
  TccJob job;
  job.target = settings.value().target.name;
  job.hint = quick_hint(settings.value());
  if (job.hint.empty()) {
    Result<std::string> config =
        furiosa_tactic_config(settings.value().tactic, settings.value().max_shapes);
    if (!config) return config.error();
    job.config = std::move(config.value());
  }
  job.threads = thread_share(options);
  return job;
}

Result<TorchJob> furiosa_torch_job(const CompileOptions& options) {
  const Result<FuriosaSettings> settings = furiosa_settings(options);
  if (!settings) return settings.error();
  TorchJob job;
  job.pes = settings.value().target.pes;
  job.hint = quick_hint(settings.value());
  job.threads = thread_share(options);
  if (!job.hint.empty()) return job;
  const std::string& tactic = settings.value().tactic;
  if (!tactic.empty() && !furiosa_tactic_config(tactic, 0)) {  // not a name that takes no number
    if (const auto numbered = furiosa_tactic_config(tactic, 1); !numbered) return numbered.error();
  }
  job.tactic = torch_tactic(tactic);
  job.max_shapes = settings.value().max_shapes;
  return job;
}

Result<FuriosaCompiler> furiosa_compiler_option(const CompileOptions& options) {
  const std::string name = vendor_option(options, "compiler");
  if (name.empty() || name == "auto") return FuriosaCompiler::kAuto;
  if (name == "tcc") return FuriosaCompiler::kTcc;
  if (name == "torch") return FuriosaCompiler::kTorch;
  return Error{ErrorKind::kUsage, "--compiler", "no such compiler", name, "use auto, tcc or torch"};
}

Result<std::string> with_furiosa_files(std::string version) {
  constexpr std::pair<const char*, const char*> kFiles[] = {{kConfigVariable, ", configuration "},
                                                            {kFuriosaHintVariable, ", hint "}};
  for (const auto& [variable, words] : kFiles) {
    const std::string file = environment(variable);
    if (file.empty()) continue;
    try {
      version += words + sha256_hex(read_text(file, size_t{1} << 20)).substr(0, 16);
    } catch (const UserError& error) {
      return error.error();
    }
  }
  return version;
}

}  // namespace npu
