// Starts the Python child and reads how it ended.
#include "backend/furiosa_torch.h"

#include <csignal>

#include "backend/environment.h"
#include "backend/furiosa_tcc.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "ir/text.h"

namespace npu {
namespace {

constexpr const char* kWhere = "furiosa.torch";
constexpr const char* kVariable = "NPU_LORA_FURIOSA_PYTHON";
constexpr const char* kInstall =
    "set NPU_LORA_FURIOSA_PYTHON to a Python that has furiosa-torch (docs/furiosa.md)";
// Raised when the script makes other torch ops of a part, or a blob keeps other things beside.
constexpr const char* kForm = "form 2";
constexpr double kVersionSeconds = 60;
constexpr size_t kCodeLimit = size_t{1} << 30;
constexpr size_t kWordsLimit = 300;
// As the script has them.
constexpr std::string_view kMark = "npu-lora: ";
constexpr int kRefused = 3, kEnvironment = 4;

// The line after the script's mark, else the last one.
std::string last_words(const ChildResult& child) {
  std::string_view said = child.err_tail;
  while (said.ends_with('\n')) said.remove_suffix(1);
  const size_t marked = said.rfind(kMark);
  if (marked != std::string_view::npos) {
    said.remove_prefix(marked + kMark.size());
    said = said.substr(0, said.find('\n'));
  } else {
    said.remove_prefix(said.rfind('\n') + 1);  // npos + 1 is 0
  }
  if (said.size() > kWordsLimit) return std::string(said.substr(0, kWordsLimit)) + " …";
  return said.empty() ? "no word" : std::string(said);
}

Error child_error(const ChildResult& child, const TorchJob& job) {
  const auto error = [&](ErrorKind kind, const char* what, std::string got, std::string hint = "") {
    return Error{kind, kWhere, what, std::move(got), std::move(hint)};
  };
  switch (child.end) {
    case ChildResult::End::kExited:
      if (job.hint.empty()) {
        if (auto wrong = furiosa_hint_error(last_words(child))) return std::move(*wrong);
      }
      if (child.exit_code == kEnvironment) {
        return error(ErrorKind::kRetriable, "can't compile here", last_words(child), kInstall);
      }
      if (child.exit_code == kRefused) {
        return error(ErrorKind::kBadInput, "refuses the part", last_words(child));
      }
      return error(ErrorKind::kBadInput, "fell over", child.describe() + ": " + last_words(child));
    case ChildResult::End::kSignaled:
      // Killed from outside, by the kernel for memory or by somebody, or fallen over by itself.
      return error(child.signal == SIGKILL || child.signal == SIGTERM ? ErrorKind::kRetriable
                                                                      : ErrorKind::kBadInput,
                   "crashed", child.describe() + ": " + last_words(child));
    case ChildResult::End::kNotStarted:
      return error(ErrorKind::kRetriable, "can't be run", child.describe(), kInstall);
    default:
      return error(ErrorKind::kRetriable, "did not end", child.describe(),
                   furiosa_time_advice(job.hint));
  }
}

std::vector<std::string> command(const std::string& python, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {python, "-c", std::string(furiosa_torch_script())});
  return arguments;
}

}  // namespace

Result<FuriosaTorch> find_furiosa_torch() {
  FuriosaTorch torch;
  torch.python = environment(kVariable);
  if (torch.python.empty()) {
    return Error{ErrorKind::kBadInput, kWhere, "no interpreter is named", "", kInstall};
  }
  ChildOptions options;
  options.limits.seconds = kVersionSeconds;
  options.max_output_bytes = 4096;
  const ChildResult child = run_child(command(torch.python, {"version"}), options);
  if (!child.ok() || child.out_cut || child.out.empty()) {
    return Error{ErrorKind::kBadInput, kVariable, "has no furiosa.torch",
                 child.ok() ? child.out : child.describe() + ": " + last_words(child), kInstall};
  }
  torch.version = child.out.substr(0, child.out.find('\n')) + ", " + kForm;
  return torch;
}

std::string torch_tactic(const std::string& tactic) {
  // furiosa-tcc has a name of its own for the default with a number of shapes.
  return tactic == kFuriosaNumberedDefault ? "Default" : tactic;
}

Result<std::string> furiosa_compile_graph(const FuriosaTorch& torch, const Graph& part,
                                          const TorchJob& job) {
  const TempDir directory;
  const fs::path source = directory.path() / "part.ir", out = directory.path() / "part.out";
  publish_text(source, print_graph(part));
  ChildOptions options;
  options.in_our_group = true;
  options.environment = {"RAYON_NUM_THREADS=" + std::to_string(job.threads),
                         "OMP_NUM_THREADS=1",  // torch only traces
                         "RUST_BACKTRACE=0", "PYTHONUNBUFFERED=1",
                         // Importing torch would import the vendor's package a second time.
                         "TORCH_DEVICE_BACKEND_AUTOLOAD=0",
                         // Its own cache, if this release can't be told to leave it.
                         "XDG_CACHE_HOME=" + directory.path().string()};
  if (!job.hint.empty()) {
    options.environment.push_back(publish_furiosa_hint(directory.path(), job.hint));
  }
  options.on_error_line = [](std::string_view line) { log(LogLevel::kDebug, "compile", line); };
  const ChildResult child = run_child(
      command(torch.python, {"compile", source.string(), out.string(), std::to_string(job.pes),
                             job.tactic, job.max_shapes > 0 ? std::to_string(job.max_shapes) : ""}),
      options);
  if (!child.ok()) return child_error(child, job);
  std::error_code failed;
  if (!fs::is_regular_file(out, failed) || fs::file_size(out, failed) == 0) {
    return Error{ErrorKind::kRetriable, kWhere, "ended well and left nothing", last_words(child),
                 ""};
  }
  return read_text(out, kCodeLimit);
}

}  // namespace npu
