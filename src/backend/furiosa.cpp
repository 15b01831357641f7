// The compile half and the costs; the cards are furiosa_device's.
#include "backend/furiosa.h"

#include <algorithm>
#include <mutex>

#include "backend/furiosa_blob.h"
#include "backend/furiosa_device.h"
#include "backend/furiosa_edf.h"
#include "backend/furiosa_options.h"
#include "backend/furiosa_session.h"
#include "backend/furiosa_setup.h"
#include "backend/furiosa_tcc.h"
#include "backend/furiosa_torch.h"
#include "backend/tcl_writer.h"
#include "base/log.h"

namespace npu {
namespace {

// Raised when write_tcl writes other texts for the same parts, or a blob keeps other things beside
// the code: it is part of the cache key.
constexpr const char* kTclForm = "3";
constexpr double kFlopsOfACard = 256e12;  // bf16, by the data sheet, all PEs at kClock
constexpr double kClock = 1e9;            // assumed: the vendor counts cycles and names no clock
constexpr double kLaunchSeconds = 10e-6;  // assumed
constexpr double kLinkBytesPerSecond = 20e9;  // assumed; PCIe 5.0 x16 could carry three times that
// By the vendor's estimates of 135 single blocks on 8 PEs: what a block moves, over its cycles.
constexpr double kMemoryBytesPerSecond = 1.3e12;
// What the compiler's search takes, by real compiles (docs/furiosa.md).
struct SearchCost {
  // CPU seconds a contraction of a part, on 1, 2, 4 and 8 PEs: about as many times more as it has
  // contractions; vector blocks count for next to nothing beside them.
  std::pair<int, double> seconds[4];
  double of_a_part;  // that compiling a part should not exceed
};
// Parts with 1 to 4 contractions of SmolLM2's and Llama-3.2-1B's sizes: 30 to 340 s in all. What
// more PEs take is by one small product (on 8 it was not finished after 16 times as long). A part
// may take a night of a machine of 8 CPUs.
constexpr SearchCost kFullSearch = {{{1, 120}, {2, 288}, {4, 396}, {8, 1920}}, 14400};
constexpr SearchCost kQuickSearch = {{{1, 8}, {2, 8}, {4, 8}, {8, 15}}, 300};
constexpr int64_t kCardMemory = int64_t{48} << 30;
// Arguments that a program passes to the card without a table of addresses.
constexpr int64_t kMostInputs = 119;
// The compiler's search grows steeply with them, launches and memory traffic fall: at 5 a layer of
// Llama-3.1-8B is 7 launches, forward and backward, at 9 % less speed than whole (docs/furiosa.md).
constexpr int64_t kContractionsOfAPart = 5;

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
  traits.options = {{"target", kFuriosaDefaultTarget},
                    {"search", ""},
                    {"tactic", ""},
                    {"max-shapes", ""},
                    {"compiler", "auto"}};
  traits.code_travels = !find_furiosa_tcc();
  return traits;
}

class FuriosaBackend : public Backend {
 public:
  FuriosaBackend(const std::string& name, std::string card)
      : traits_(furiosa_traits(name)), card_(std::move(card)) {}

  const Traits& traits() const override { return traits_; }

  // Of furiosa-tcc, which most parts go to; of furiosa.torch where there is no other.
  Result<std::string> compiler_version() override {
    const Result<fs::path> tcc = find_furiosa_tcc();
    if (!tcc) {
      if (!elsewhere_.empty()) return elsewhere_;
      if (!torch()) return tcc.error();
      return with_furiosa_files(torch().value().version);
    }
    const std::lock_guard lock(version_mutex_);
    if (tcc.value() != versioned_) {
      Result<std::string> version = furiosa_tcc_version(tcc.value());
      if (!version) return version;
      versioned_ = tcc.value();
      version_ = std::move(version.value());
    }
    return with_furiosa_files(version_ + form_text());
  }

  bool take_code_of(const std::string& version) override {
    if (find_furiosa_tcc() || (version + ",").find(form_text() + ",") == std::string::npos) {
      return false;
    }
    elsewhere_ = version;
    return true;
  }

  std::optional<std::string> compiler_of(const Graph& part,
                                         const CompileOptions& options) override {
    if (!by_torch(part, options) || !torch()) return std::nullopt;
    const Result<std::string> version = with_furiosa_files(torch().value().version);
    return version ? version.value() : torch().value().version;
  }

  VendorOptions key_options(const CompileOptions& options, KeyUse use) const override {
    return furiosa_key_options(options, use);
  }

  std::optional<std::string> unsupported(const Graph& graph, NodeId node,
                                         const CompileOptions& options) override {
    auto reason = tcl_unsupported(graph, node);
    const Result<FuriosaCompiler> choice = furiosa_compiler_option(options);
    if (!reason || !choice || choice.value() == FuriosaCompiler::kTcc) return reason;
    if (choice.value() == FuriosaCompiler::kTorch || torch_beside()) return std::nullopt;
    return reason;
  }

  std::optional<Error> cannot_compile(const CompileOptions& options) override {
    const Result<FuriosaCompiler> choice = furiosa_compiler_option(options);
    if (!choice) return choice.error();
    if (const auto settings = furiosa_settings(options);
        settings.ok() && settings.value().full_by_config) {
      std::call_once(told_, [] {
        log_info("compile",
                 "the search is full, as NPU_COMPILER_CONFIG_PATH is set; --search quick keeps it "
                 "short");
      });
    }
    if (choice.value() == FuriosaCompiler::kTorch) {
      if (const Result<TorchJob> job = furiosa_torch_job(options); !job) return job.error();
      if (!torch()) return torch().error();
      return std::nullopt;
    }
    const Result<TccJob> job = furiosa_tcc_job(options);
    if (!job) return job.error();
    if (const Result<fs::path> tcc = find_furiosa_tcc(); !tcc) return tcc.error();
    return furiosa_cross_compiler_problem();
  }

  Result<Blob> compile(const Graph& part, const CompileOptions& options) override {
    if (const auto problem = cannot_compile(options)) return temporary(*problem);
    if (by_torch(part, options)) return compile_by_torch(part, options);
    const Result<fs::path> tcc = find_furiosa_tcc();
    if (!tcc) return temporary(tcc.error());
    const Result<std::string> version = compiler_version();
    if (!version) return temporary(version.error());
    TccJob job = furiosa_tcc_job(options).take();
    job.in_our_group = true;
    const Result<TclFunction> function = write_tcl(part);
    if (!function) return function.error();
    FuriosaBlob blob;
    blob.target = job.target;
    Result<TccCode> code = furiosa_compile_tcl(tcc.value(), function.value().text, job);
    if (!code) return code.error();
    const Result<EdfPorts> ports = read_edf_ports(code.value().edf);
    if (!ports) return ports.error();
    for (const auto& wrong :
         {check_ports("inputs", function.value().inputs, ports.value().inputs),
          check_ports("outputs", function.value().outputs, ports.value().outputs)}) {
      if (wrong) return *wrong;
    }
    blob.edf = std::move(code.value().edf);
    blob.cycles = code.value().cycles;
    blob.inputs = names_of(function.value().inputs);
    blob.outputs = names_of(function.value().outputs);
    return encode_furiosa_blob(blob, version.value());
  }
  bool compiles_in_process() const override { return false; }

  std::optional<CostRates> cost_rates(const CompileOptions& options) override {
    // What is wrong with options the first estimate says.
    Result<FuriosaSettings> asked = furiosa_settings(options);
    const FuriosaSettings settings =
        asked.ok() ? std::move(asked.value()) : furiosa_settings({}).take();
    const int pes = settings.target.pes;
    const SearchCost& cost = settings.search == FuriosaSearch::kFull ? kFullSearch : kQuickSearch;
    double seconds = 0;
    for (const auto& [count, of_a_contraction] : cost.seconds) {
      if (count <= pes) seconds = of_a_contraction;
    }
    const double share = static_cast<double>(pes) / furiosa::kPesOfACard;
    return CostRates{kClock,
                     kFlopsOfACard * share,
                     kLinkBytesPerSecond,
                     kMemoryBytesPerSecond * share,
                     seconds,
                     cost.of_a_part,
                     std::to_string(pes) + (pes == 1 ? " PE" : " PEs") +
                         ", cycles by the vendor's model of the card, 1 GHz, 10 us a launch and "
                         "20 GB/s to the card assumed"};
  }

  Result<double> estimate_cycles(const Graph& part, const CompileOptions& options) override {
    const Result<fs::path> tcc = find_furiosa_tcc();
    if (!tcc) return temporary(tcc.error());
    if (by_torch(part, options)) {
      return Error{ErrorKind::kBadInput, "furiosa.torch", "compiles it, and makes no estimates", "",
                   ""};
    }
    Result<TccJob> job = furiosa_tcc_job(options);
    if (!job) return job.error();
    job.value().seconds_limit = options.seconds_limit;
    const Result<TclFunction> function = write_tcl(part);
    if (!function) return function.error();
    return furiosa_estimate_tcl(tcc.value(), function.value().text, job.value());
  }

  std::optional<double> code_cycles(const Blob& code) const override {
    const Result<FuriosaBlob> blob = decode_furiosa_blob(code);
    return blob ? blob.value().cycles : std::nullopt;
  }

  Result<std::unique_ptr<Device>> open(const DeviceOptions& options) override {
    return open_furiosa_device(card_, options);
  }

 private:
  static std::string form_text() { return std::string(", TCL form ") + kTclForm; }

  // A fault of this machine says nothing about the part.
  static Error temporary(Error error) {
    error.kind = ErrorKind::kRetriable;
    return error;
  }

  // Asked of a child, once; from several threads.
  const Result<FuriosaTorch>& torch() {
    std::call_once(asked_, [&] { torch_ = find_furiosa_torch(); });
    return *torch_;
  }

  // Whether `auto` may use it: the native worker, where that is what runs here, can't load its
  // code.
  bool torch_beside() { return torch() && !furiosa::native_worker(); }

  // Whether this part goes to furiosa.torch; a pure function of part, options and what is
  // installed.
  bool by_torch(const Graph& part, const CompileOptions& options) {
    const Result<FuriosaCompiler> choice = furiosa_compiler_option(options);
    if (!choice || choice.value() == FuriosaCompiler::kTcc) return false;
    return choice.value() == FuriosaCompiler::kTorch || (!write_tcl(part).ok() && torch_beside());
  }

  Result<Blob> compile_by_torch(const Graph& part, const CompileOptions& options) {
    FuriosaBlob blob;
    blob.target = furiosa_settings(options).take().target.name;
    blob.container = FuriosaContainer::kRunnable;
    Result<std::string> code =
        furiosa_compile_graph(torch().value(), part, furiosa_torch_job(options).take());
    if (!code) return code.error();
    blob.edf = std::move(code.value());
    for (const NodeId id : part.inputs()) blob.inputs.push_back(part.node(id).name);
    for (const GraphOutput& output : part.outputs()) blob.outputs.push_back(output.name);
    return encode_furiosa_blob(blob, torch().value().version);
  }

  Traits traits_;
  std::string card_;
  // What the program at this path said of itself.
  std::mutex version_mutex_;
  fs::path versioned_;
  std::string version_;
  std::string elsewhere_;  // version of the compiler on another machine, where there is none here
  std::once_flag asked_, told_;
  std::optional<Result<FuriosaTorch>> torch_;
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
