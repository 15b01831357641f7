// The rules of RNGD's options stand here alone: which search, which compiler, what goes together.
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

std::string vendor_option(const CompileOptions& options, std::string_view name) {
  for (const auto& [option, value] : options.vendor) {
    if (option == name) return value;
  }
  return "";
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
    return Error{ErrorKind::kUsage, "--max-shapes", "must be a whole number from 1", shapes, ""};
  }
  return max_shapes;
}

}  // namespace

Result<FuriosaSearch> furiosa_search_option(const CompileOptions& options) {
  const std::string name = vendor_option(options, "search"),
                    tactic = vendor_option(options, "tactic");
  const std::string hint = environment("TACTIC_HINT_PATH");
  if (name == "full") return FuriosaSearch::kFull;
  if (name.empty()) {
    const bool told =
        !tactic.empty() || !hint.empty() || !environment("NPU_COMPILER_CONFIG_PATH").empty();
    return told ? FuriosaSearch::kFull : FuriosaSearch::kQuick;
  }
  if (name != "quick") {
    return Error{ErrorKind::kUsage, "--search", "no such search", name, "use quick or full"};
  }
  if (!tactic.empty()) {
    return Error{ErrorKind::kUsage, "--tactic", "is for --search full", tactic, ""};
  }
  if (!hint.empty()) {
    return Error{ErrorKind::kUsage, "--search", "quick can't be had beside TACTIC_HINT_PATH", hint,
                 "unset the variable"};
  }
  return FuriosaSearch::kQuick;
}

namespace {

// For TACTIC_HINT_PATH, of either compiler; "" for a full search.
Result<std::string> quick_hint(const CompileOptions& options) {
  const Result<FuriosaSearch> search = furiosa_search_option(options);
  if (!search) return search.error();
  if (search.value() == FuriosaSearch::kFull) return std::string();
  const Result<int> max_shapes = max_shapes_option(options);
  if (!max_shapes) return max_shapes.error();
  return furiosa_quick_hint(max_shapes.value() > 0 ? max_shapes.value() : kQuickShapes);
}

Result<std::string> tcc_config(const CompileOptions& options) {
  const Result<int> max_shapes = max_shapes_option(options);
  if (!max_shapes) return max_shapes.error();
  Result<std::string> config =
      furiosa_tactic_config(vendor_option(options, "tactic"), max_shapes.value());
  if (config && !config.value().empty() && !environment("NPU_COMPILER_CONFIG_PATH").empty()) {
    return Error{ErrorKind::kUsage, "--tactic", "can't be given beside NPU_COMPILER_CONFIG_PATH",
                 environment("NPU_COMPILER_CONFIG_PATH"), "write the hint into that file"};
  }
  return config;
}

}  // namespace

Result<FuriosaTarget> furiosa_target_option(const CompileOptions& options) {
  const std::string asked = vendor_option(options, "target");
  return find_furiosa_target(asked.empty() ? kFuriosaDefaultTarget : asked);
}

Result<TccJob> furiosa_tcc_job(const CompileOptions& options) {
  const Result<FuriosaTarget> target = furiosa_target_option(options);
  if (!target) return target.error();
  const Result<std::string> hint = quick_hint(options);
  if (!hint) return hint.error();
  TccJob job;
  job.target = target.value().name;
  job.hint = hint.value();
  if (job.hint.empty()) {
    Result<std::string> config = tcc_config(options);
    if (!config) return config.error();
    job.config = std::move(config.value());
  }
  job.threads = thread_share(options);
  return job;
}

Result<TorchJob> furiosa_torch_job(const CompileOptions& options) {
  const Result<FuriosaTarget> target = furiosa_target_option(options);
  if (!target) return target.error();
  const Result<std::string> hint = quick_hint(options);
  if (!hint) return hint.error();
  TorchJob job;
  job.pes = target.value().pes;
  job.hint = hint.value();
  job.threads = thread_share(options);
  if (!job.hint.empty()) return job;
  const Result<int> max_shapes = max_shapes_option(options);
  if (!max_shapes) return max_shapes.error();
  const std::string tactic = vendor_option(options, "tactic");
  if (!tactic.empty() && !furiosa_tactic_config(tactic, 0)) {  // not a name that takes no number
    if (const auto numbered = furiosa_tactic_config(tactic, 1); !numbered) return numbered.error();
  }
  job.tactic = torch_tactic(tactic);
  job.max_shapes = max_shapes.value();
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
  constexpr std::pair<const char*, const char*> kFiles[] = {
      {"NPU_COMPILER_CONFIG_PATH", ", configuration "}, {"TACTIC_HINT_PATH", ", hint "}};
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
