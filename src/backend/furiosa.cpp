// The compile half and the costs; the cards are furiosa_device's.
#include "backend/furiosa.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "backend/environment.h"
#include "backend/furiosa_blob.h"
#include "backend/furiosa_device.h"
#include "backend/furiosa_edf.h"
#include "backend/furiosa_session.h"
#include "backend/furiosa_tcc.h"
#include "backend/tcl_writer.h"
#include "base/hash.h"
#include "base/thread_pool.h"

namespace npu {
namespace {

// Raised when write_tcl writes other texts for the same parts: it is part of the cache key.
constexpr const char* kTclForm = "1";
constexpr const char* kDefaultTarget = "renegade-8pe";
constexpr double kFlopsOfACard = 256e12;  // bf16, by the data sheet, all PEs at kClock
constexpr double kClock = 1e9;            // assumed: the vendor counts cycles and names no clock
constexpr double kLaunchSeconds = 10e-6;  // assumed
constexpr double kLinkBytesPerSecond = 20e9;  // assumed; PCIe 5.0 x16 could carry three times that
// By the vendor's estimates of 135 single blocks on 8 PEs: what a block moves, over its cycles.
constexpr double kMemoryBytesPerSecond = 1.3e12;
// What a part takes to compile, in CPU seconds on 1 PE, by real compiles of parts with 1 to 4
// contractions of SmolLM2's and Llama-3.2-1B's sizes (docs/furiosa.md): 30 to 340, about as many
// times more as it has contractions; vector blocks count for next to nothing beside them.
constexpr double kCompileSeconds = 120;
// How much more code for several PEs takes, by one small product on 1, 2, 4 and 8 of them (on 8
// it was not finished after 16 times as long).
constexpr std::pair<int, double> kCompileFactor[] = {{1, 1}, {2, 2.4}, {4, 3.3}, {8, 16}};
// A night for the parts of a model on a machine of 8 CPUs.
constexpr double kCompileSecondsOfAPart = 14400;
constexpr int64_t kCardMemory = int64_t{48} << 30;
// Arguments that a program passes to the card without a table of addresses.
constexpr int64_t kMostInputs = 119;
// The compiler's search grows steeply with them, launches and memory traffic fall: at 5 a layer of
// Llama-3.1-8B is 7 launches, forward and backward, at 9 % less speed than whole (docs/furiosa.md).
constexpr int64_t kContractionsOfAPart = 5;

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

Result<std::string> tcc_config(const CompileOptions& options) {
  const std::string shapes = vendor_option(options, "max-shapes");
  int max_shapes = 0;
  const auto [end, error] =
      std::from_chars(shapes.data(), shapes.data() + shapes.size(), max_shapes);
  if (!shapes.empty() && (error != std::errc() || end != shapes.data() + shapes.size() ||
                          max_shapes < 1 || max_shapes > 1 << 20)) {
    return Error{ErrorKind::kUsage, "--max-shapes", "must be a whole number from 1", shapes, ""};
  }
  Result<std::string> config = furiosa_tactic_config(vendor_option(options, "tactic"), max_shapes);
  if (config && !config.value().empty() && !environment("NPU_COMPILER_CONFIG_PATH").empty()) {
    return Error{ErrorKind::kUsage, "--tactic", "can't be given beside NPU_COMPILER_CONFIG_PATH",
                 environment("NPU_COMPILER_CONFIG_PATH"), "write the hint into that file"};
  }
  return config;
}

Result<TccJob> tcc_job(const CompileOptions& options) {
  const std::string asked = vendor_option(options, "target");
  Result<FuriosaTarget> target = find_furiosa_target(asked.empty() ? kDefaultTarget : asked);
  if (!target) return target.error();
  Result<std::string> config = tcc_config(options);
  if (!config) return config.error();
  TccJob job;
  job.target = target.value().name;
  job.config = std::move(config.value());
  job.threads = thread_share(options);
  return job;
}

std::string_view element_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "Bfloat16";
    case DType::kF32:
      return "Float32";
    default:
      return "";  // as the vendor calls them is not known
  }
}

// Ports go by position, so what the compiler kept must be what it was given.
std::optional<Error> check_ports(const char* what, const std::vector<TclFunction::Port>& wanted,
                                 const std::vector<EdfPort>& kept) {
  const auto differs = [&](std::string rule, std::string got) {
    return Error{ErrorKind::kBadInput, "furiosa-tcc", std::move(rule), std::move(got), ""};
  };
  if (wanted.size() != kept.size()) {
    return differs("must keep " + std::to_string(wanted.size()) + " " + what,
                   std::to_string(kept.size()));
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const TensorType& type = wanted[i].type;
    int64_t elements = 1;
    for (const int64_t dim : kept[i].dims) {
      if (dim != 0 && elements > INT64_MAX / dim) return differs("must keep shapes", "too large");
      elements *= dim;
    }
    const std::string_view known = element_type(type.dtype);
    if (elements == num_elements(type.shape) && (known.empty() || kept[i].element_type == known)) {
      continue;
    }
    return differs("must keep the type and size of " + wanted[i].name,
                   std::to_string(elements) + " of " + kept[i].element_type);
  }
  return std::nullopt;
}

std::vector<std::string> names_of(const std::vector<TclFunction::Port>& ports) {
  std::vector<std::string> names;
  for (const TclFunction::Port& port : ports) names.push_back(port.name);
  return names;
}

Traits furiosa_traits(const std::string& name) {
  Traits traits;
  traits.name = name;
  traits.code_name = "furiosa";  // code fits every card
  traits.compute_dtype = DType::kBF16;
  traits.limits.contractions = kContractionsOfAPart;
  traits.limits.inputs = kMostInputs;
  traits.host_memory = false;
  traits.launch_seconds = kLaunchSeconds;
  traits.precision = DType::kBF16;  // operands of products, whatever their type
  traits.memory_bytes = kCardMemory;
  traits.arithmetic_head = true;
  traits.dear_compiles = true;
  traits.legalise = {"pad_to_concat"};
  traits.options = {{"target", kDefaultTarget}, {"tactic", ""}, {"max-shapes", ""}};
  return traits;
}

class FuriosaBackend : public Backend {
 public:
  FuriosaBackend(const std::string& name, std::string card)
      : traits_(furiosa_traits(name)), card_(std::move(card)) {}

  const Traits& traits() const override { return traits_; }

  Result<std::string> compiler_version() override {
    const Result<fs::path> tcc = find_furiosa_tcc();
    if (!tcc) return tcc.error();
    Result<std::string> version = furiosa_tcc_version(tcc.value());
    if (!version) return version;
    std::string text = std::move(version.value()) + ", TCL form " + kTclForm;
    // A configuration of the user's own: what it says counts, not where it lies.
    if (const std::string config = environment("NPU_COMPILER_CONFIG_PATH"); !config.empty()) {
      try {
        text += ", configuration " + sha256_hex(read_text(config, size_t{1} << 20)).substr(0, 16);
      } catch (const UserError& error) {
        return error.error();
      }
    }
    return text;
  }

  std::optional<std::string> unsupported(const Graph& graph, NodeId node) override {
    return tcl_unsupported(graph, node);
  }

  std::optional<Error> cannot_compile(const CompileOptions& options) override {
    const Result<TccJob> job = tcc_job(options);
    if (!job) return job.error();
    return furiosa_cross_compiler_problem();
  }

  Result<Blob> compile(const Graph& part, const CompileOptions& options) override {
    const Result<fs::path> tcc = find_furiosa_tcc();
    if (!tcc) return temporary(tcc.error());
    if (const auto problem = cannot_compile(options)) return temporary(*problem);
    const Result<std::string> version = compiler_version();
    if (!version) return temporary(version.error());
    TccJob job = tcc_job(options).take();
    job.in_our_group = true;
    const Result<TclFunction> function = write_tcl(part);
    if (!function) return function.error();
    FuriosaBlob blob;
    blob.target = job.target;
    Result<std::string> edf = furiosa_compile_tcl(tcc.value(), function.value().text, job);
    if (!edf) return edf.error();
    const Result<EdfPorts> ports = read_edf_ports(edf.value());
    if (!ports) return ports.error();
    for (const auto& wrong :
         {check_ports("inputs", function.value().inputs, ports.value().inputs),
          check_ports("outputs", function.value().outputs, ports.value().outputs)}) {
      if (wrong) return *wrong;
    }
    blob.edf = std::move(edf.value());
    blob.inputs = names_of(function.value().inputs);
    blob.outputs = names_of(function.value().outputs);
    return encode_furiosa_blob(blob, version.value());
  }
  bool compiles_in_process() const override { return false; }

  std::optional<CostRates> cost_rates(const CompileOptions& options) override {
    const std::string asked = vendor_option(options, "target");
    const Result<FuriosaTarget> target =
        find_furiosa_target(asked.empty() ? kDefaultTarget : asked);
    if (!target) return std::nullopt;
    const int pes = target.value().pes;
    double factor = 1;
    for (const auto& [count, times] : kCompileFactor) {
      if (count <= pes) factor = times;
    }
    const double share = static_cast<double>(pes) / furiosa::kPesOfACard;
    return CostRates{kClock,
                     kFlopsOfACard * share,
                     kLinkBytesPerSecond,
                     kMemoryBytesPerSecond * share,
                     kCompileSeconds * factor,
                     kCompileSecondsOfAPart,
                     std::to_string(pes) + (pes == 1 ? " PE" : " PEs") +
                         ", cycles by the vendor's model of the card, 1 GHz, 10 us a launch and "
                         "20 GB/s to the card assumed"};
  }

  Result<double> estimate_cycles(const Graph& part, const CompileOptions& options) override {
    const Result<fs::path> tcc = find_furiosa_tcc();
    if (!tcc) return temporary(tcc.error());
    Result<TccJob> job = tcc_job(options);
    if (!job) return job.error();
    job.value().seconds_limit = options.seconds_limit;
    const Result<TclFunction> function = write_tcl(part);
    if (!function) return function.error();
    return furiosa_estimate_tcl(tcc.value(), function.value().text, job.value());
  }

  Result<std::unique_ptr<Device>> open(const DeviceOptions& options) override {
    return open_furiosa_device(card_, options);
  }

 private:
  // A fault of this machine says nothing about the part.
  static Error temporary(Error error) {
    error.kind = ErrorKind::kRetriable;
    return error;
  }

  Traits traits_;
  std::string card_;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_furiosa(std::string_view card) {
  const bool number = !card.empty() && card.size() <= 4 &&
                      card.find_first_not_of("0123456789") == std::string_view::npos;
  if (!number && card != "auto") {
    return Error{ErrorKind::kUsage, "--backend", "no such card", "furiosa:" + std::string(card),
                 "use furiosa:0, furiosa:1, … or furiosa:auto"};
  }
  return std::unique_ptr<Backend>(
      std::make_unique<FuriosaBackend>("furiosa:" + std::string(card), std::string(card)));
}

std::unique_ptr<Backend> make_furiosa_entry() {
  return std::make_unique<FuriosaBackend>("furiosa", "auto");
}

std::optional<Error> probe_furiosa() {
  std::vector<Error> problems;
  if (const Result<fs::path> tcc = find_furiosa_tcc(); !tcc) problems.push_back(tcc.error());
  if (auto problem = furiosa_cross_compiler_problem()) problems.push_back(std::move(*problem));
  if (auto problem = probe_furiosa_device()) problems.push_back(std::move(*problem));
  if (problems.empty()) return std::nullopt;
  Error all{ErrorKind::kRetriable, "furiosa", "", "", ""};
  for (const Error& problem : problems) {
    all.what += (all.what.empty() ? "" : "; ") + problem.where + ": " + problem.what;
    all.hint += (all.hint.empty() ? "" : "; ") + problem.hint;
  }
  return all;
}

}  // namespace npu
