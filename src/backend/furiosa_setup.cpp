// Reads the environment and looks at device nodes; asks a child whether a runtime loads.
#include "backend/furiosa_setup.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "backend/environment.h"
#include "backend/library_search.h"
#include "base/file.h"

namespace npu::furiosa {
namespace {

constexpr const char* kInstall =
    "install FuriosaAI's driver and runtime (docs/furiosa.md), or set NPU_LORA_FURIOSA_RUNTIME to "
    "libdevice_runtime.so or NPU_LORA_FURIOSA_PYTHON to a Python that has furiosa.torch";
constexpr VendorLibrary kRuntime = {"furiosa", "libdevice_runtime.so", "furiosa/lib",
                                    "NPU_LORA_FURIOSA_RUNTIME", kInstall};
constexpr size_t kMostCardFileBytes = 4096;
constexpr int kMostCards = 64;
constexpr double kTrySeconds = 60;

std::string nodes_directory() {
  const std::string named = environment("NPU_LORA_RNGD_NODES");
  return named.empty() ? "/dev/rngd" : named;
}

// "npu3mgmt"
bool has_node(int card) {
  std::error_code failed;
  return fs::exists(fs::path(nodes_directory()) / ("npu" + std::to_string(card) + "mgmt"), failed);
}

Error no_node(const std::string& where, const std::string& got) {
  return {ErrorKind::kBadInput, where, "has no device node in " + nodes_directory(), got,
          "install the driver; in a container pass the card's nodes through"};
}

// Cards by number, "npu" before it or not, apart by commas or blanks: "0, npu3".
Result<std::vector<int>> parse_cards(const std::string& text, const std::string& where) {
  std::vector<int> cards;
  const std::string_view separators = ", \t\r\n";
  for (size_t begin = 0;
       (begin = text.find_first_not_of(separators, begin)) != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(separators, begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end;
    const char* const digits = word.data() + (word.starts_with("npu") ? 3 : 0);
    int card = -1;
    const auto [stop, error] = std::from_chars(digits, word.data() + word.size(), card);
    if (error != std::errc() || stop != word.data() + word.size() || card < 0 ||
        card >= kMostCards) {
      return Error{ErrorKind::kUsage, where, "must list cards by number", "'" + word + "'",
                   "write 0 or 0,3"};
    }
    if (!has_node(card)) return no_node(where, "card " + std::to_string(card));
    cards.push_back(card);
  }
  if (cards.empty()) return Error{ErrorKind::kUsage, where, "names no card", "", "write 0 or 0,3"};
  return cards;
}

std::string python() {
  if (const std::string named = environment("NPU_LORA_FURIOSA_PYTHON"); !named.empty()) {
    return named;
  }
  if (const std::string venv = environment("VIRTUAL_ENV"); !venv.empty()) {
    return venv + "/bin/python";
  }
  return "python3";
}

WorkerProgram python_program() {
  // Without the variable, importing torch imports the vendor's package a second time.
  return {{python(), "-c", std::string(worker_script())},
          {"TORCH_DEVICE_BACKEND_AUTOLOAD=0", "PYTHONUNBUFFERED=1"}};
}

}  // namespace

Result<std::vector<int>> cards_to_try(const std::string& which) {
  if (which != "auto") return parse_cards(which, "furiosa:" + which);
  if (const std::string listed = environment("NPU_LORA_RNGD"); !listed.empty()) {
    return parse_cards(listed, "NPU_LORA_RNGD");
  }
  if (const std::string file = environment("NPU_LORA_RNGD_FILE"); !file.empty()) {
    try {
      return parse_cards(read_text(file, kMostCardFileBytes), file);
    } catch (const UserError& error) {
      return error.error();
    }
  }
  std::vector<int> cards;
  for (int card = 0; card < kMostCards; ++card) {
    if (has_node(card)) cards.push_back(card);
  }
  if (cards.empty()) return no_node("furiosa:auto", "no npu*mgmt");
  return cards;
}

Result<WorkerProgram> worker_program() {
  const std::string wanted = environment("NPU_LORA_FURIOSA_WORKER");
  if (wanted == "python") return python_program();
  if (!wanted.empty() && wanted != "native") {
    return Error{ErrorKind::kUsage, "NPU_LORA_FURIOSA_WORKER", "must be native or python", wanted,
                 ""};
  }
  const Result<fs::path> library = find_library(kRuntime);
  if (library) {
    return WorkerProgram{{self_executable(), "device-worker", library.value().string()}, {}};
  }
  // A library that was asked for is not replaced by something else.
  if (wanted == "native" || !environment(kRuntime.variable).empty()) return library.error();
  return python_program();
}

bool native_worker() {
  const Result<WorkerProgram> program = worker_program();
  return program && program.value().argv[0] == self_executable();
}

WorkerLimits worker_limits() {
  WorkerLimits limits;
  const auto seconds = [](const char* name) { return std::atof(environment(name).c_str()); };
  if (const double call = seconds("NPU_LORA_FURIOSA_SECONDS"); call > 0) {
    limits.call_seconds = limits.silence_seconds = call;
  }
  if (const double load = seconds("NPU_LORA_FURIOSA_LOAD_SECONDS"); load > 0) {
    limits.open_seconds = limits.load_seconds = load;
  }
  return limits;
}

std::optional<Error> try_worker(const WorkerProgram& program) {
  std::vector<std::string> argv = program.argv;
  argv.emplace_back("probe");
  ChildOptions options;
  options.limits.seconds = kTrySeconds;
  options.environment = program.environment;
  const ChildResult child = run_child(argv, options);
  if (child.ok()) return std::nullopt;
  std::string words = child.err_tail.substr(
      child.err_tail.find_last_of('\n', child.err_tail.empty() ? 0 : child.err_tail.size() - 2) +
      1);
  while (words.ends_with('\n')) words.pop_back();
  return Error{ErrorKind::kBadInput, argv[0], "the runtime can't be loaded: it " + child.describe(),
               words, kInstall};
}

}  // namespace npu::furiosa
