// From options to models, sessions and runners: the way that all commands share.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "base/log.h"
#include "base/process.h"
#include "cli/commands.h"
#include "cli/memory_room.h"
#include "train/head.h"
#include "transform/legalise.h"

namespace npu {
namespace {

DType dtype_option(const Options& options, std::string_view name) {
  const std::string text = options.choice(name, {"f32", "bf16", "f16"});
  return *parse_dtype(text);
}

// Whether a run leaves a fifth of the memory to its runtime's own temporaries and to what else the
// machine does.
struct Fit {
  bool fits;
  std::string text;  // "700 MiB of 9000 MiB available here"
};
Fit fit_of(const ModelConfig& config, const ModelGraphs& graphs, const Traits& traits,
           const SessionOptions& session) {
  const MemoryRoom room = memory_room(traits);
  const int64_t bytes =
      needed_bytes(estimate_memory(config, graphs, prepacks(session, traits)), room);
  return {bytes < room.bytes / 5 * 4, std::to_string(bytes >> 20) + " MiB of " +
                                          std::to_string(room.bytes >> 20) + " MiB " + room.where};
}

// Copies of weights are the first thing to do without: a step then takes a few percent more, with
// recomputing a third.
void resolve_prepack(const ModelConfig& config, const ModelGraphs& graphs, const Traits& traits,
                     SessionOptions& session) {
  if (session.prepack || prepacks(session, traits) == nullptr) return;
  const Fit fit = fit_of(config, graphs, traits, session);
  session.prepack = fit.fits;
  if (!fit.fits)
    log_info("train", "prepack off: with more copies of the weights it needs " + fit.text);
}

// Options of vendors' compilers that were given. One that the backend does not take is an error.
std::map<std::string, std::string, std::less<>> given_vendor_options(const Options& options,
                                                                     const Traits& traits) {
  std::set<std::string, std::less<>> known;
  for (const BackendEntry& entry : backend_entries()) {
    const auto backend = entry.make();
    for (const auto& [name, value] : backend->traits().options) known.insert(name);
  }
  std::map<std::string, std::string, std::less<>> given;
  for (const std::string& name : known) {
    if (!options.given(name)) continue;
    const bool taken = std::ranges::any_of(
        traits.options, [&, &wanted = name](const auto& option) { return option.first == wanted; });
    if (!taken) {
      fail(ErrorKind::kUsage, "--" + name, "is no option of the backend's compiler", traits.name,
           "leave the option out");
    }
    given[name] = options.text(name);
  }
  return given;
}

// Where the backend's compiler is not installed: whose code the cache holds, as SessionOptions has
// it.
std::string code_of_cache(Backend& backend, const fs::path& directory) {
  const Traits& traits = backend.traits();
  if (!traits.code_travels) return "";
  for (const std::string& version : Cache(directory).compilers_of(traits.code_name)) {
    if (!backend.take_code_of(version)) continue;
    log_info("compile", "its compiler is not installed here: parts that " + version +
                            " made are taken from " + directory.string());
    return version;
  }
  return "";
}

}  // namespace

std::vector<fs::path> hub_roots() {
  std::vector<fs::path> roots;
  if (const std::string hub = environment("HF_HUB_CACHE"); !hub.empty()) roots.emplace_back(hub);
  if (const std::string home = environment("HF_HOME"); !home.empty()) {
    roots.push_back(fs::path(home) / "hub");
  }
  if (const std::string home = environment("HOME"); !home.empty()) {
    roots.push_back(fs::path(home) / ".cache/huggingface/hub");
  }
  return roots;
}

HfModel open_model(const Options& options, bool with_weights) {
  HfModel model = load_model(options.text("model"), with_weights, hub_roots());
  if (with_weights) model.config.storage_dtype = stored_dtype(model);
  return model;
}

fs::path cache_directory(const Options& options) {
  if (options.has("cache-dir")) return options.text("cache-dir");
  if (const std::string cache = environment("NPU_LORA_CACHE"); !cache.empty()) return cache;
  const std::string home = environment("HOME");
  if (home.empty()) {
    fail(ErrorKind::kUsage, "--cache-dir", "no place for compiled parts",
         "neither NPU_LORA_CACHE nor HOME is set", "give --cache-dir DIR");
  }
  return fs::path(home) / ".cache/npu-lora";
}

std::vector<int64_t> seq_lengths(const Options& options) {
  std::vector<int64_t> lengths = options.integers("seq-len", 2, 1 << 20);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

DatasetOptions dataset_options(const Options& options, const ModelConfig& config) {
  DatasetOptions d;
  d.max_length = seq_lengths(options).back();
  d.train_on_all = options.choice("train-on", {"response", "all"}) == "all";
  d.skip_bad_rows = options.integer("skip-bad-rows");
  if (options.has("date")) d.template_date = options.text("date");
  d.vocab_size = config.vocab_size;
  return d;
}

void report_dataset(const Dataset& data, const std::string& option) {
  for (const std::string& warning : data.warnings) log_warn("data", warning);
  if (data.trained_tokens() > 0) return;
  fail_input(
      "--" + option, "no row has a token with loss",
      std::to_string(data.rows.size()) + " rows, " + std::to_string(data.dropped) + " dropped",
      "npu-lora data FILE --model M shows what each row trains; --seq-len may be too short");
}

void refuse_other_lora(const Options& options, const std::string& option, const LoraSpec& adapter) {
  const LoraSpec asked = lora_options(options);
  const auto refuse = [&](const char* name, bool differs) {
    if (!options.given(name) || !differs) return;
    fail(ErrorKind::kUsage, std::string("--") + name, "differs from the adapter of " + option,
         options.text(name), "leave it out: the adapter brings its own");
  };
  refuse("rank", asked.rank != adapter.rank);
  refuse("alpha", asked.alpha != adapter.alpha);
  refuse("targets", asked.targets != adapter.targets);
  refuse("rslora", asked.rslora != adapter.rslora);
}

LoraSpec lora_options(const Options& options) {
  LoraSpec lora;
  lora.rank = options.integer("rank", 1, 4096);
  lora.alpha = options.real("alpha");
  if (lora.alpha <= 0)
    fail(ErrorKind::kUsage, "--alpha", "must be positive", options.text("alpha"));
  lora.targets = parse_targets(options.text("targets"));
  lora.rslora = options.flag("rslora");
  return lora;
}

std::set<std::string, std::less<>> disabled_passes(const Options& options) {
  std::set<std::string, std::less<>> known;
  for (const std::span<const Pass> list : {default_passes(), legalise_passes()}) {
    for (const Pass& pass : list) {
      known.emplace(pass.name);
      for (const Rule& rule : pass.rules) known.emplace(rule.name);
    }
  }
  std::set<std::string, std::less<>> disabled;
  for (const std::string& name : options.list("disable-pass")) {
    if (!known.contains(name)) {
      std::string names;
      for (const std::string& k : known) names += (names.empty() ? "" : ", ") + k;
      fail(ErrorKind::kUsage, "--disable-pass", "no pass or rule of this name", "'" + name + "'",
           "known: " + names);
    }
    disabled.insert(name);
  }
  return disabled;
}

SessionOptions session_options(const Options& options, const LoraSpec& lora,
                               const ModelConfig& config) {
  SessionOptions session;
  const auto backend = make_backend(options.text("backend")).take();
  const Traits& traits = backend->traits();
  session.backend = traits.name;
  if (options.text("backend") == "auto") {
    log_info("train", "backend " + session.backend + ": the first usable one; see npu-lora doctor");
  }
  session.threads = static_cast<int>(options.integer("threads", 0, 1024));
  LayerOptions& layer = session.graphs.layer;
  layer.seq_len = seq_lengths(options).back();
  layer.numerics = *parse_numerics(options.choice("numerics", {"hf", "vllm", "fp32"}));
  layer.lora = lora;
  if (options.has("dtype")) session.activation_dtype = dtype_option(options, "dtype");
  if (options.has("max-mm")) session.max_contractions = options.integer("max-mm", 0);
  if (options.has("part-seconds")) {
    if (session.max_contractions) {
      fail(ErrorKind::kUsage, "--part-seconds", "can't be given beside --max-mm", "",
           "give one of the two");
    }
    session.part_seconds = options.real("part-seconds");
    if (!(*session.part_seconds >= 0)) {
      fail(ErrorKind::kUsage, "--part-seconds", "must not be negative",
           options.text("part-seconds"));
    }
  }
  if (options.has("host-parts")) {
    const std::string text = options.text("host-parts");
    session.auto_placement = text == "auto";
    if (!session.auto_placement) session.host_groups.emplace();
    for (const std::string& group : options.words("host-parts")) {
      if (text == "none" || text == "auto") break;
      if (std::find(kPlacementGroups.begin(), kPlacementGroups.end(), group) ==
          kPlacementGroups.end()) {
        fail(ErrorKind::kUsage, "--host-parts", "unknown group", "'" + group + "'",
             "use fwd, bwd, rms, rms-bwd, ce-stats, ce-grad, or none, or auto");
      }
      session.host_groups->insert(group);
    }
  }
  session.plan.passes.disabled = disabled_passes(options);
  session.vendor = given_vendor_options(options, traits);
  session.graphs.vocab_chunk = options.integer("vocab-chunk", 16);
  session.compile.cache_dir = cache_directory(options);
  session.code_of = code_of_cache(*backend, session.compile.cache_dir);
  session.compile.jobs = static_cast<int>(options.integer("jobs", 1, 256));
  session.compile.seconds_limit = options.real("compile-timeout");
  session.compile.memory_limit_bytes = options.integer("compile-memory", 0, 1 << 30) << 20;
  session.compile.seconds_budget = options.real("compile-budget");
  if (session.compile.seconds_budget < 0) {
    fail(ErrorKind::kUsage, "--compile-budget", "must not be negative",
         options.text("compile-budget"));
  }
  session.compile.adaptive_cut = !options.flag("no-adaptive-cut");
  session.compile.expect_cached = options.flag("expect-cached");
  session.compile.worker = {self_executable(), "compile-worker"};
  // Weights follow the activations unless asked otherwise. Where widening is free they stay as they
  // are on disk: the same values in half the memory.
  layer.activation_dtype = session.activation_dtype.value_or(traits.compute_dtype);
  const std::string weights = options.choice("weight-dtype", {"auto", "f32", "bf16", "f16"});
  if (weights != "auto") {
    layer.weight_dtype = *parse_dtype(weights);
  } else {
    layer.weight_dtype = traits.widens_weights ? config.storage_dtype : layer.activation_dtype;
  }
  const std::string prepack = options.choice("prepack", {"auto", "on", "off"});
  if (prepack != "auto") session.prepack = prepack == "on";
  if (prepack == "on" && traits.prepack == Prepack::kNever) {
    throw UserError({ErrorKind::kUsage, "--prepack",
                     "needs a backend that can keep weights in a form of its own", traits.name,
                     "leave the option out"});
  }
  return session;
}

void resolve_memory(const Options& options, const ModelConfig& config, SessionOptions& session) {
  const std::string mode = options.choice("recompute", {"auto", "none", "layer"});
  session.graphs.recompute = mode == "layer" ? Recompute::kLayer : Recompute::kNone;
  const auto backend = make_backend(session.backend).take();
  const ModelGraphs graphs = build_model_graphs(config, session.graphs);
  resolve_prepack(config, graphs, backend->traits(), session);
  if (mode != "auto") return;
  const Fit fit = fit_of(config, graphs, backend->traits(), session);
  if (!fit.fits) session.graphs.recompute = Recompute::kLayer;
  log_info("train", std::string("recompute ") + (fit.fits ? "none" : "layer") +
                        ": keeping activations needs " + fit.text);
}

void resolve_placement(const ModelConfig& config, SessionOptions& session,
                       const WeightStore& weights) {
  if (!session.auto_placement) return;
  const Placement placement = find_placement(config, session, weights);
  for (const std::string& line : describe_placement(placement)) log_info("placement", line);
  session.host_groups = placement.host_groups;
  session.auto_placement = false;
}

std::optional<Placement> recall_placement(const ModelConfig& config, SessionOptions& session) {
  if (!session.auto_placement) return std::nullopt;
  std::optional<Placement> placement = known_placement(config, session);
  if (placement) {
    session.host_groups = placement->host_groups;
  } else {
    session.host_groups.emplace();
    session.graphs.eval = true;
    log_info("placement",
             "decided at the first run with --host-parts auto, which measures every group on the "
             "device; so all are taken to be there");
  }
  session.auto_placement = false;
  return placement;
}

void report_compile(const CompileReport& report, bool quiet) {
  if (quiet) return;
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.1f", report.seconds);
  log_info("compile", std::to_string(report.built) + " parts compiled, " +
                          std::to_string(report.cached) + " from the cache, " + seconds + " s");
}

std::unique_ptr<ModelRunner> start_runner(const ModelConfig& config, const SessionOptions& session,
                                          const WeightStore& weights, bool quiet) {
  Prepared prepared = prepare(config, session);
  const bool bar = !quiet && isatty(STDERR_FILENO) != 0;
  if (bar) {
    prepared.options.compile.progress = [](size_t done, size_t total, std::string_view what) {
      std::cerr << "\r\033[Kcompile " << done << "/" << total << " " << what << std::flush;
    };
  }
  const CompileReport report = compile(prepared);
  if (bar) std::cerr << "\r\033[K";
  report_compile(report, quiet);
  resolve_prepack(config, prepared.graphs, prepared.backend->traits(), prepared.options);
  warn_of_memory(config, prepared);
  return load(config, std::move(prepared), weights);
}

int64_t loss_rows_option(const Options& options, std::span<const int64_t> counts, int64_t all) {
  const int64_t asked = options.integer("loss-rows");
  return asked > 0 ? std::min(asked, all) : choose_loss_rows(counts, all);
}

}  // namespace npu
