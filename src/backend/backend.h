// The contract with a vendor: what it accepts, how it compiles, and how its device runs and holds
// data. src/backend is the only folder that knows vendor SDKs; a new vendor is one file here
// (docs/add-a-backend.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace npu {

// Plain mirror of transform's PartLimits (backend lies below transform).
struct BackendLimits {
  int64_t contractions = 0, nodes = 0, inputs = 0, outputs = 0;
};

// What a device may do with the frozen weights of products besides keeping them as they lie.
enum class Prepack : uint8_t { kNever, kOnRequest, kByDefault };

// Facts about a backend that the rest of the program plans with.
struct Traits {
  std::string name;                     // "openvino:CPU"
  DType compute_dtype = DType::kF32;    // of activations by default
  BackendLimits limits;                 // default part limits
  std::vector<std::string> host_parts;  // groups that run on the host by default
  bool host_memory = true;              // buffers are host memory: host_pointer() is never null
  bool deterministic = true;            // equal inputs give equal bits
  double launch_seconds = 0;            // cost of one call, for plan
  DType precision = DType::kF32;        // of f32 arithmetic: bf16 where operands are rounded to it
  bool exact_f32 = true;                // an f32 result has f32's digits, not 16 bits' worth
  bool arithmetic_head = false;         // its compiler has no gather, iota, compare and select
  bool dear_compiles = false;           // minutes a part: few graphs are worth some waste
  bool host_cpu = false;                // its device is this CPU, as the reference's is
  bool widens_weights = false;          // 16-bit weights are widened inside matmuls at no cost
  Prepack prepack = Prepack::kNever;
  // What prepacking keeps of each weight for each of forward and backward; nothing for a forward
  // whose products read bf16 weights as they lie.
  int64_t prepack_bytes = 0;
  bool forward_reads_bf16 = false;
  bool prepack_bf16_only = false;  // weights of other dtypes are not kept
  bool prepack_exact = false;      // and no result changes a bit
  int64_t memory_bytes = 0;  // of the device, where buffers lie in memory of its own; 0 = unknown
  // Passes of transform/legalise.h, by name, that its compiler needs after the default ones.
  std::vector<std::string> legalise;
  // Names in cache keys of what is compiled, where it serves backends of several names; "" = name.
  std::string code_name;
  // Options of the command line that its compiler takes, with their defaults ("" = none). They
  // reach compile() and estimate_cycles() as CompileOptions::vendor.
  std::vector<std::pair<std::string, std::string>> options;
  // Its compiler is not installed here, and what it made elsewhere can be loaded: take_code_of().
  bool code_travels = false;
};

// Names and values of --tactic and the like.
using VendorOptions = std::vector<std::pair<std::string, std::string>>;

struct CompileOptions {
  int threads = 0;       // for the compiled code, where it is fixed at compile time; 0 = all
  VendorOptions vendor;  // verbatim
  // What follows changes no result and is no part of a cache key.
  int jobs = 1;              // compiles at the same time on this host, which share its CPUs
  double seconds_limit = 0;  // of an estimate; 0 = none
};

// What a step is priced with beside the cycles of its parts: stated, not measured.
struct CostRates {
  double cycles_per_second = 0;
  double flops_per_second = 0;           // the peak of what is compiled for
  double transfer_bytes_per_second = 0;  // between host and device
  double memory_bytes_per_second = 0;    // of the device's own memory
  double compile_seconds = 0;            // CPU time a contraction of a part takes to compile
  double compile_seconds_of_a_part = 0;  // that a part should not exceed, unless told otherwise
  std::string basis;                     // in words, what is assumed
};

// What a cache key is of: a part's code, or the vendor's forecast for it.
enum class KeyUse : uint8_t { kCode, kForecast };

// What a compiler made: opaque bytes, loadable by the same backend and compiler version.
using Blob = std::string;

// Device memory. Freed with the last owner.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual size_t bytes() const = 0;
  // The memory itself where the device can address the host's; null otherwise.
  virtual std::byte* host_pointer() = 0;

  // Its bytes stay as they are from now on, until it is freed: the device may keep the value in
  // other forms too (packed for products, as constants of compiled code) if DeviceOptions::prepack.
  void freeze() { frozen_ = true; }
  bool frozen() const { return frozen_; }
  // Those forms, the device's own business; freed with the buffer.
  struct Forms {
    virtual ~Forms() = default;
  };
  std::shared_ptr<Forms>& forms() { return forms_; }

 private:
  bool frozen_ = false;
  std::shared_ptr<Forms> forms_;
};

// A loaded part. Inputs and outputs are bound by position, in the order of the part's graph.
class Executable {
 public:
  virtual ~Executable() = default;
};

class Device {
 public:
  virtual ~Device() = default;

  // Errors: kBadInput when this part is refused (it goes to the host), kRetriable when the device
  // is lost, busy or full.
  virtual Result<std::unique_ptr<Executable>> load(const Blob& blob, const Graph& part) = 0;

  // Zero-filled, aligned to kBufferAlignment. Out of memory is a kRetriable Error.
  virtual Result<std::shared_ptr<Buffer>> allocate(size_t bytes) = 0;
  // Host memory used in place (a mapped weight file); falls back to a copy where the device cannot.
  virtual Result<std::shared_ptr<Buffer>> adopt(const Tensor& host) = 0;
  // A window into another buffer, which it keeps alive.
  virtual std::shared_ptr<Buffer> view(std::shared_ptr<Buffer> whole, size_t offset,
                                       size_t bytes) = 0;
  virtual void upload(Buffer& to, std::span<const std::byte> from) = 0;
  virtual void download(std::span<std::byte> to, Buffer& from) = 0;

  // Starts a call; buffers must outlive wait(). Calls on one device run in order of submission.
  using Ticket = uint64_t;
  virtual Result<Ticket> submit(Executable& executable, std::span<Buffer* const> inputs,
                                std::span<Buffer* const> outputs) = 0;
  virtual std::optional<Error> wait(Ticket ticket) = 0;

  // True once it answers no more. What lies in memory of its own is then gone too: download gives
  // nothing that may be used.
  virtual bool lost() const { return false; }

  // What the last finished call took by the device's own clock; nothing where only the wall knows.
  virtual std::optional<double> last_call_seconds() const { return std::nullopt; }
};

struct DeviceOptions {
  int threads = 0;       // host threads for CPU devices; 0 = all
  bool prepack = false;  // frozen buffers may be kept in other forms too
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Traits& traits() const = 0;
  // Identifies the compiler for the cache key ("openvino 2026.4.1 …"). Error: library not found,
  // with how to install it as hint.
  virtual Result<std::string> compiler_version() = 0;
  // With code_travels: where the compiler is not installed, code is taken that one with this
  // version made on another machine, and compiler_version() says so from now on. False where the
  // compiler is here, or where this program would not have had such code made.
  virtual bool take_code_of(const std::string& /*version*/) { return false; }
  // The same for one part, where options or the part itself send it to another compiler than
  // compiler_version() speaks of; nothing where they do not.
  virtual std::optional<std::string> compiler_of(const Graph&, const CompileOptions&) {
    return std::nullopt;
  }
  // What of the options of the vendor's own a part's code or forecast depends on, for its cache
  // key: settled, so that options which come to the same are the same here.
  virtual VendorOptions key_options(const CompileOptions& options, KeyUse) const {
    return options.vendor;
  }
  // Why this node (in its graph) cannot be compiled; nothing when it can.
  virtual std::optional<std::string> unsupported(const Graph& graph, NodeId node,
                                                 const CompileOptions& options) = 0;
  // What stands in the way of compile() whatever the part: a tool that it needs and does not find
  // here, an option that it does not take. Asked before the first part is compiled.
  virtual std::optional<Error> cannot_compile(const CompileOptions&) { return std::nullopt; }
  // Pure: text of the part in, blob out; may run in a child process.
  virtual Result<Blob> compile(const Graph& part, const CompileOptions& options) = 0;
  // True when compile() only re-encodes the graph, so a child process and its limits gain nothing.
  virtual bool compiles_in_process() const = 0;
  // The vendor's own forecast of one call of a part, in cycles, without compiling it; may take
  // seconds and be asked from several threads. Nothing in cost_rates() where there is none.
  virtual std::optional<CostRates> cost_rates(const CompileOptions&) { return std::nullopt; }
  virtual Result<double> estimate_cycles(const Graph&, const CompileOptions&) {
    return Error{ErrorKind::kBadInput, traits().name, "makes no estimates", "", ""};
  }
  // What the compiler itself reckoned that one call of code it made takes, in cycles, if it said.
  virtual std::optional<double> code_cycles(const Blob&) const { return std::nullopt; }
  virtual Result<std::unique_ptr<Device>> open(const DeviceOptions& options) = 0;
};

// One row of the list of backends, in order of preference for `auto`.
struct BackendEntry {
  std::string_view pattern;  // "openvino:CPU"
  std::string_view summary;
  // Creates the object without touching the vendor's library.
  std::unique_ptr<Backend> (*make)();
  // Nothing when it can be used here, else why not and how to install it (a `doctor` line).
  std::optional<Error> (*probe)();
  bool automatic;  // considered by `auto`
};
std::span<const BackendEntry> backend_entries();

// What backends run in children of this program: `npu-lora NAME …`, no command of users'.
struct WorkerEntry {
  std::string_view name;
  int (*main)(const std::vector<std::string>& arguments);  // the exit code
};
std::span<const WorkerEntry> worker_entries();

// `auto` picks the first usable entry. Unknown names are a kUsage error that lists the known ones.
Result<std::unique_ptr<Backend>> make_backend(std::string_view name);

}  // namespace npu
