// Running furiosa-tcc and reading its words. What it prints was seen of release 2026.4.0.
#include "backend/furiosa_tcc.h"

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <vector>

#include "backend/environment.h"
#include "backend/furiosa_edf.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"

namespace npu {
namespace {

constexpr const char* kProgram = "furiosa-tcc";
constexpr const char* kVariable = "NPU_LORA_FURIOSA_TCC";
constexpr const char* kInstall =
    "pip install furiosa-tcc, in a Python environment of its own, and put it in PATH or name it by "
    "NPU_LORA_FURIOSA_TCC";
constexpr const char* kCrossCompiler = "aarch64-linux-gnu-gcc";
constexpr const char* kInstallCross = "apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross";
constexpr size_t kEdfLimit = size_t{1} << 30;
// What a search writes of its schedule has tens of KiB; with more it is not that.
constexpr size_t kScheduleLimit = size_t{32} << 20;
constexpr double kMostCycles = 0x1p53;  // above, not every whole number is a double
constexpr size_t kWordsLimit = 300;     // of the compiler's, in one message
constexpr double kVersionSeconds = 60;
constexpr const char* kTimeAdvice =
    "a longer --compile-timeout, smaller parts (--max-mm) or a --target of fewer PEs";

bool is_program(const fs::path& path) {
  std::error_code failed;
  return fs::is_regular_file(path, failed) && ::access(path.c_str(), X_OK) == 0;
}

std::vector<fs::path> path_directories() {
  std::vector<fs::path> directories;
  const std::string list = environment("PATH");
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(':', begin), list.size());
    if (end > begin) directories.emplace_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return directories;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const size_t first = text.find_first_not_of(" \t\r");
    if (first < end) {
      const size_t last = text.substr(0, end).find_last_not_of(" \t\r");
      lines.emplace_back(text.substr(first, last + 1 - first));
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string shortened(std::string text) {
  if (text.size() > kWordsLimit) text = text.substr(0, kWordsLimit) + " …";
  return text;
}

bool is_progress(std::string_view line) {
  return line.starts_with("[") || line.starts_with("Done in") || line.starts_with("Finished");
}

// The line of `tcl` that "at line N, col M" speaks of, with its number; "" without such words.
std::string quoted_line(std::string_view words, std::string_view tcl) {
  constexpr std::string_view kAt = "at line ";
  const size_t at = words.find(kAt);
  if (at == std::string_view::npos) return "";
  size_t wanted = 0;
  std::from_chars(words.data() + at + kAt.size(), words.data() + words.size(), wanted);
  for (size_t line = 1; line < wanted && !tcl.empty(); ++line) {
    tcl.remove_prefix(std::min(tcl.find('\n'), tcl.size() - 1) + 1);
  }
  return "line " + std::to_string(wanted) + ": " + std::string(tcl.substr(0, tcl.find('\n')));
}

Error tcc_error(ErrorKind kind, std::string what, std::string got, std::string hint = "") {
  return {kind, kProgram, std::move(what), shortened(std::move(got)), std::move(hint)};
}

// Its last words that are not about progress; of a panic those that follow the source line.
std::string last_words(const std::vector<std::string>& lines) {
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    if (lines[i].find("panicked at") != std::string::npos) return lines[i + 1];
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find("failed:") != std::string::npos) return lines[i];
  }
  for (size_t i = lines.size(); i-- > 0;) {
    if (!is_progress(lines[i])) return lines[i];
  }
  return "no word";
}

// What an exit other than 0 was about.
Error exit_error(const ChildResult& child, std::string_view tcl, const TccJob& job) {
  const std::string& said = child.err_tail;
  const auto mentions = [&](std::string_view words) {
    return said.find(words) != std::string::npos;
  };
  const std::vector<std::string> lines = lines_of(said);
  // Faults of this machine say nothing about the part, whatever the compiler makes of them.
  for (const char* fault : {"(os error 11)", "(os error 12)", "(os error 28)", "No space left",
                            "memory allocation of", "Resource temporarily unavailable"}) {
    if (mentions(fault)) {
      return tcc_error(ErrorKind::kRetriable, "lacks memory, processes or disk", last_words(lines));
    }
  }
  if (mentions("cannot load compiler config")) {
    std::string cause = "no word";
    for (size_t i = 0; i + 1 < lines.size(); ++i) {
      if (lines[i] == "Caused by:") cause = lines[i + 1];
    }
    return tcc_error(ErrorKind::kUsage, "does not take its configuration", cause,
                     "see --tactic, --max-shapes and NPU_COMPILER_CONFIG_PATH");
  }
  if (job.hint.empty()) {
    if (auto error = furiosa_hint_error(last_words(lines))) return std::move(*error);
  }
  if (mentions("unknown target NPU") || mentions("unknown NPU ID")) {
    return tcc_error(ErrorKind::kUsage, "does not know this target", job.target, "see --target");
  }
  if (mentions("failed to parse") || mentions("parse error")) {
    return tcc_error(ErrorKind::kBadInput, "does not parse the part's text",
                     quoted_line(said, tcl) + " (" + last_words(lines) + ")");
  }
  if (mentions("No such file or directory") && !mentions("panicked at")) {
    return tcc_error(ErrorKind::kRetriable, "could not end its last step", last_words(lines),
                     kInstallCross);
  }
  if (mentions("Dynamic[")) {
    return tcc_error(ErrorKind::kBadInput, "was given a size that is not bound", last_words(lines));
  }
  if (mentions("panicked at")) {
    return tcc_error(ErrorKind::kBadInput, "panicked", last_words(lines));
  }
  return tcc_error(ErrorKind::kBadInput, "refuses the part (" + child.describe() + ")",
                   last_words(lines));
}

// `faster`: what would have made it end in time.
std::optional<Error> child_error(const ChildResult& child, std::string_view tcl, const TccJob& job,
                                 const std::string& faster) {
  if (child.ok()) return std::nullopt;
  switch (child.end) {
    case ChildResult::End::kExited:
      return exit_error(child, tcl, job);
    case ChildResult::End::kSignaled:
      if (child.err_tail.find("memory allocation of") != std::string::npos) {
        return exit_error(child, tcl, job);
      }
      // Killed from outside, by the kernel for memory or by somebody, or fallen over by itself.
      return tcc_error(child.signal == SIGKILL || child.signal == SIGTERM ? ErrorKind::kRetriable
                                                                          : ErrorKind::kBadInput,
                       "crashed", child.describe());
    case ChildResult::End::kNotStarted:
      return tcc_error(ErrorKind::kRetriable, "can't be run", child.describe(), kInstall);
    default:
      return tcc_error(ErrorKind::kRetriable, "did not end", child.describe(), faster);
  }
}

// Runs it over a text in `directory`. The compiler's own cache stays off: ours is keyed better.
ChildResult run_tcc(const fs::path& tcc, const std::string& tcl, const TccJob& job,
                    const TempDir& directory, std::vector<std::string> environment,
                    std::vector<std::string> arguments) {
  publish_text(directory.path() / "part.tc", tcl);
  ChildOptions options;
  options.limits.seconds = job.seconds_limit;
  options.in_our_group = job.in_our_group;
  options.environment = std::move(environment);
  options.environment.push_back("RAYON_NUM_THREADS=" + std::to_string(job.threads));
  options.environment.push_back("RUST_BACKTRACE=0");
  if (!job.config.empty()) {
    const fs::path config = directory.path() / "config.yaml";
    publish_text(config, job.config);
    options.environment.push_back("NPU_COMPILER_CONFIG_PATH=" + config.string());
  }
  options.on_error_line = [](std::string_view line) {
    if (line.starts_with("[")) log(LogLevel::kDebug, "compile", line);
  };
  arguments.insert(arguments.begin(), {tcc.string(), "--target-npu", job.target});
  arguments.push_back((directory.path() / "part.tc").string());
  return run_child(arguments, options);
}

// What its search says of one graph in a file of its debugging output.
std::optional<double> cycles_of_schedule(const fs::path& file) {
  std::error_code failed;
  if (!fs::is_regular_file(file, failed)) return std::nullopt;
  const auto json = nlohmann::json::parse(read_text(file, kScheduleLimit), nullptr, false);
  static const nlohmann::json::json_pointer kCycles(
      "/baseline/cost/Compilable/cycle/execution_time");
  if (json.is_discarded() || !json.contains(kCycles) || !json.at(kCycles).is_number()) {
    return std::nullopt;
  }
  const double cycles = std::round(json.at(kCycles).get<double>());
  return cycles >= 1 && cycles <= kMostCycles ? std::optional(cycles) : std::nullopt;
}

// What its search says that the chosen schedule takes, over all graphs of the program: the folder
// of its debugging output has one for each. Nothing where a release writes no such thing: code is
// code all the same.
std::optional<double> scheduled_cycles(const fs::path& folder) {
  double total = 0;
  try {
    for (const fs::directory_entry& graph : fs::directory_iterator(folder)) {
      const std::optional<double> cycles = cycles_of_schedule(graph.path() / "meta.json");
      if (!cycles) return std::nullopt;
      total += *cycles;
    }
  } catch (const std::exception& unreadable) {
    log(LogLevel::kDebug, "compile", std::string("no schedule: ") + unreadable.what());
    return std::nullopt;
  }
  return total >= 1 && total <= kMostCycles ? std::optional(total) : std::nullopt;
}

constexpr FuriosaTarget kTargets[] = {
    {"renegade", 1}, {"renegade-2pe", 2}, {"renegade-4pe", 4}, {"renegade-8pe", 8}};

// Hints of release 2026.4. Those with a number take how many shapes to try for a tensor.
struct Tactic {
  std::string_view name;
  bool numbered;
};
constexpr Tactic kTactics[] = {
    {"Default", false},           {kFuriosaNumberedDefault, true},
    {"NoConstraint", false},      {"ForLlmModelComputeBound", true},
    {"ForLlmModelIOBound", true}, {"ForLlmModelComputeIOBalanced", false},
    {"ForVisionModel", false},    {"ForMiscModel", false}};

template <class Rows>
std::string names_of(const Rows& rows) {
  std::string names;
  for (const auto& row : rows) names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

}  // namespace

Result<fs::path> find_furiosa_tcc() {
  if (const std::string named = environment(kVariable); !named.empty()) {
    if (is_program(named)) return fs::absolute(named);
    return Error{ErrorKind::kBadInput, kVariable, "must name the program furiosa-tcc", named,
                 kInstall};
  }
  std::vector<fs::path> directories = path_directories();
  if (const std::string active = environment("VIRTUAL_ENV"); !active.empty()) {
    directories.push_back(fs::path(active) / "bin");
  }
  for (fs::path above = fs::path(self_executable()).parent_path(); above != above.root_path();
       above = above.parent_path()) {
    directories.push_back(above / ".venv/bin");
  }
  for (const fs::path& directory : directories) {
    if (is_program(directory / kProgram)) return fs::absolute(directory / kProgram);
  }
  return Error{ErrorKind::kBadInput, kProgram, "was not found in PATH or a Python environment", "",
               kInstall};
}

Result<std::string> furiosa_tcc_version(const fs::path& tcc) {
  ChildOptions options;
  options.limits.seconds = kVersionSeconds;
  options.max_output_bytes = 4096;
  const ChildResult child = run_child({tcc.string(), "--version"}, options);
  constexpr std::string_view kStart = "tcc v";
  const std::vector<std::string> lines = lines_of(child.out);
  if (child.ok() && lines.size() == 1 && lines[0].starts_with(kStart) && !child.out_cut) {
    return std::string(kProgram) + " " + lines[0].substr(kStart.size());
  }
  return Error{ErrorKind::kBadInput, tcc.string(), "does not say its version as furiosa-tcc does",
               shortened(child.ok() ? child.out : child.describe()), kInstall};
}

std::optional<Error> furiosa_cross_compiler_problem() {
  for (const fs::path& directory : path_directories()) {
    if (is_program(directory / kCrossCompiler)) return std::nullopt;
  }
  return Error{ErrorKind::kBadInput, kCrossCompiler,
               "furiosa-tcc needs it for the last of its steps, and it is not in PATH", "",
               kInstallCross};
}

std::span<const FuriosaTarget> furiosa_targets() { return kTargets; }

Result<FuriosaTarget> find_furiosa_target(std::string_view name) {
  for (const FuriosaTarget& target : kTargets) {
    if (target.name == name) return target;
  }
  return Error{ErrorKind::kUsage, "--target", "is none of one RNGD card", std::string(name),
               "use one of " + names_of(kTargets)};
}

Result<TccCode> furiosa_compile_tcl(const fs::path& tcc, const std::string& tcl,
                                    const TccJob& job) {
  const TempDir directory;
  const fs::path out = directory.path() / "part.edf", schedule = directory.path() / "schedule";
  std::vector<std::string> environment = {"DUMP_TACTIC_DEBUG=" + schedule.string()};
  if (!job.hint.empty()) environment.push_back(publish_furiosa_hint(directory.path(), job.hint));
  const ChildResult child = run_tcc(tcc, tcl, job, directory, std::move(environment),
                                    {"--no-compiler-cache", "--output", out.string()});
  if (auto error = child_error(child, tcl, job, furiosa_time_advice(job.hint))) {
    return std::move(*error);
  }
  std::error_code failed;
  if (!fs::is_regular_file(out, failed)) {
    return tcc_error(ErrorKind::kRetriable, "ended well and left no EDF",
                     last_words(lines_of(child.err_tail)));
  }
  TccCode code{read_text(out, kEdfLimit), scheduled_cycles(schedule)};
  if (auto error = check_edf_frame(code.edf)) return std::move(*error);
  return code;
}

Result<double> furiosa_estimate_tcl(const fs::path& tcc, const std::string& tcl,
                                    const TccJob& job) {
  const TempDir directory;
  // Bounds are for the search, whose model is another: the user's do not reach an estimate either.
  const ChildResult child = run_tcc(tcc, tcl, job, directory,
                                    {std::string(kFuriosaHintVariable) + "="}, {"--evaluate-tcl"});
  if (auto error = child_error(child, tcl, job, kTimeAdvice)) return std::move(*error);
  const std::vector<std::string> lines = lines_of(child.out);
  double cycles = -1;
  if (lines.size() == 1) {
    const char* const end = lines[0].data() + lines[0].size();
    const auto [stop, error] = std::from_chars(lines[0].data(), end, cycles);
    if (error != std::errc() || stop != end || !std::isfinite(cycles)) cycles = -1;
  }
  if (cycles < 0) {
    return tcc_error(ErrorKind::kBadInput, "must print a number of cycles", child.out);
  }
  if (cycles == 0) {
    return tcc_error(ErrorKind::kBadInput, "estimates 0 cycles, as for a size that is not bound",
                     "");
  }
  return cycles;
}

Result<std::string> furiosa_tactic_config(const std::string& tactic, int max_shapes) {
  if (tactic.empty() && max_shapes == 0) return std::string();
  const std::string name = tactic.empty() ? kFuriosaNumberedDefault : tactic;
  for (const Tactic& known : kTactics) {
    if (known.name != name) continue;
    if (known.numbered != (max_shapes > 0)) {
      return Error{
          ErrorKind::kUsage, "--max-shapes",
          "must " + std::string(known.numbered ? "" : "not ") + "be given with --tactic " + name,
          std::to_string(max_shapes), ""};
    }
    return known.numbered ? "tactic_hint:\n  " + name + ": " + std::to_string(max_shapes) + "\n"
                          : "tactic_hint: " + name + "\n";
  }
  return Error{ErrorKind::kUsage, "--tactic", "no such hint", tactic,
               "use one of " + names_of(kTactics)};
}

std::string furiosa_quick_hint(int max_shapes) {
  const std::string bounds =
      "  max_num_partitioning_axes: 1\n  max_num_unique_shapes: " + std::to_string(max_shapes) +
      "\n  use_efficiently_broadcasted_tactic: true\n";
  return "global_hint:\n" + bounds + "global_einsum_hint:\n" + bounds;
}

std::string publish_furiosa_hint(const fs::path& folder, const std::string& hint) {
  const fs::path file = folder / "hint.yaml";
  publish_text(file, hint);
  return std::string(kFuriosaHintVariable) + "=" + file.string();
}

std::optional<Error> furiosa_hint_error(std::string_view words) {
  const std::string file = environment(kFuriosaHintVariable);
  // A reader of YAML gives line and column; the one of TCL says "col".
  if (file.empty() || (words.find(" column ") == std::string_view::npos &&
                       words.find("EOF while parsing a value") == std::string_view::npos)) {
    return std::nullopt;
  }
  return Error{ErrorKind::kUsage, kFuriosaHintVariable,
               "the compiler does not take the bounds in " + file, shortened(std::string(words)),
               "correct the file, or unset the variable"};
}

std::string furiosa_time_advice(const std::string& hint) {
  return std::string(hint.empty() ? "--search quick, " : "") + kTimeAdvice;
}

}  // namespace npu
