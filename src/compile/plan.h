// From graphs to programs: passes, parts, distinct parts, compiled and placed, then loaded and run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "compile/cache.h"
#include "transform/partition.h"
#include "transform/passes.h"

namespace npu {

// A cut that is not partition()'s under the limits alone.
struct ChosenCut {
  PartLabels labels;
  std::string note;    // "3 parts, 421,000 cycles and 3 launches a call, by 14 estimates"
  std::string digest;  // of its entry in the cache; "" when there is none
};

struct PlanOptions {
  PartLimits limits;  // from Traits unless the user sets --max-mm
  PassOptions passes;
  std::set<std::string, std::less<>> host_groups;  // --host-parts
  CompileOptions compile;
  // Cuts a graph that has passed the passes; nothing: partition() does, under the limits. Null:
  // always.
  std::function<std::optional<ChosenCut>(const Graph&)> choose_cut;
};

// One part of one graph and where it will run.
struct PlannedPart {
  size_t distinct = 0;                   // index into Plan::distinct
  std::vector<std::string> input_names;  // the graph's name for each input of the canonical part
  std::vector<std::string> output_names;
  std::string name;  // "layer_fwd.2"; the second piece that it was cut in: "layer_fwd.2/1"
  bool on_host = false;
  std::string host_reason;  // "--host-parts", "rejected: …", "unsupported: …"
  std::string cut_reason;   // of a piece: why the part around it was cut, as in host_reason
};

// A graph of the model (layer_fwd, ce_grad, …) as an ordered list of parts.
struct PlannedGraph {
  std::string group;  // placement group: fwd, bwd, rms, ce-stats, ce-grad, rms-bwd
  std::string name;   // "layer_fwd"
  Graph graph;        // after the passes
  std::vector<PlannedPart> parts;
  // Why the graph as a whole stays on the host: "--host-parts", "can't be cut: …"; "" when it does
  // not, whatever becomes of its parts.
  std::string host_reason;
  std::string cut_note;  // how its cut was chosen, where not by the limits
  std::map<std::string, TensorType, std::less<>> temporaries;  // values that cross parts
};

// A part that is compiled once however often it is used.
struct DistinctPart {
  Graph graph;                   // canonical
  std::string text;              // its printed form
  std::string group, first_use;  // "fwd", "layer_fwd.2"
  std::string unsupported;       // why the backend will not take it, known before compiling
  int uses = 0;
  std::optional<CompileOutcome> outcome;
  std::string cache_digest;  // its entry in the cache; set with `outcome`
};

struct Plan {
  std::vector<PlannedGraph> graphs;
  std::vector<DistinctPart> distinct;
  PartLimits limits;                                       // that its parts keep to
  std::vector<std::string> cut_digests;                    // cache entries that say why cuts are so
  const PlannedGraph& graph(std::string_view name) const;  // InternalError when absent
};

struct NamedGraph {
  std::string group;
  Graph graph;
};
// Runs the passes, cuts, canonicalises and dedupes. Parts with a node that the backend does not
// support, graphs that can't be cut to the limits, and graphs of a host group (these uncut) are
// placed on the host with the reason.
Plan make_plan(const std::vector<NamedGraph>& graphs, Backend& backend, const PlanOptions& options);

struct CompileSettings {
  fs::path cache_dir;
  int jobs = 1;
  double seconds_limit = 600;  // per part
  int64_t memory_limit_bytes = 0;
  bool expect_cached = false;  // a miss is a kCheckFailed UserError with its explanation
  bool adaptive_cut = true;    // cut parts that fail; off: they go to the host whole
  double seconds_budget = 0;   // for all parts together; 0 = none
  PartOrigin origin;           // the options of this run, kept with what is built
  // argv of the compile child; empty: compile in this process, one by one and without limits.
  std::vector<std::string> worker;
  std::function<void(size_t done, size_t total, std::string_view what)> progress;
};

struct CompileReport {
  size_t built = 0, cached = 0;
  struct Failure {
    std::string part, outcome, reason;
  };
  std::vector<Failure> failed;  // parts that go to the host
  struct Cut {
    std::string part, reason;
    size_t pieces;
  };
  std::vector<Cut> cuts;  // parts that failed and whose pieces stand for them
  // Of every entry that this came from, failures and chosen cuts included.
  std::vector<std::string> cache_digests;
  // False when another try may end otherwise: the budget left a part untried, or one failed for a
  // reason that is not its own.
  bool lasting = true;
  size_t not_stored = 0;  // outcomes that the cache could not take, each with a warning
  double seconds = 0;
};
// Fills the outcome of every distinct part that runs on the device, from the cache or by compiling.
// A part that fails is cut in two and its pieces are tried, down to single nodes; what still fails
// is moved to the host with its reason, as is all that the budget leaves untried. Graphs then list
// the pieces. Parts on the host are compiled by the `cpu` backend at load. Each outcome, failures
// too, is cached when it is there, so an interrupted call can be repeated and a second one compiles
// nothing. UserErrors: the compiler is missing; expect_cached did not hold.
CompileReport compile_plan(Plan& plan, Backend& backend, const CompileOptions& options,
                           const CompileSettings& settings);

// The same cut as far as the cache knows it; compiles nothing. Parts that it does not know stay on
// the device without an outcome, as all do where the compiler is missing.
CompileReport recall_plan(Plan& plan, Backend& backend, const CompileOptions& options,
                          const CompileSettings& settings);

// Whether an outcome from the cache also counts under these limits: one that ran into a limit says
// nothing about a wider one.
bool still_holds(const CompileOutcome& outcome, const CompileSettings& settings);

// The child's side: one job on stdin (backend name, options, part text), the result on stdout.
// Returns the exit code.
int compile_worker_main();

// Loaded executables of a plan on one device, plus a cpu device for parts on the host.
class Runtime {
 public:
  // A blob that the device refuses (kBadInput) sends its part to the host with the reason; other
  // failures of loading (device lost, no memory) are kRetriable Errors.
  static Result<std::unique_ptr<Runtime>> create(Plan plan, Backend& backend,
                                                 const DeviceOptions& options);
  ~Runtime();

  Device& device();
  const Plan& plan() const;

  using Bindings = std::map<std::string, Buffer*, std::less<>>;
  // Runs all parts of a graph in order and returns when the last is done. `bindings` holds a buffer
  // of device() for each input and output of the graph by name; other names are ignored. Several
  // inputs may share a buffer; a buffer that is written must be bound once. Values that cross parts
  // live in memory that the runtime owns and shares between graphs.
  std::optional<Error> run(std::string_view graph, const Bindings& bindings);

  // Moves the parts of a placement group to the host, with this reason, or back to the device those
  // that were loaded there. Bindings and buffers stay as they are. Errors: as of create(); the
  // device is lost with what the host would need, in memory of its own (kRetriable).
  std::optional<Error> place_group(std::string_view group, bool on_host, const std::string& reason);
  // The group whose part the device failed on in the last run(); "" when it did not.
  const std::string& failed_group() const;

  // One finished call of a part. Inputs still hold what the part read; buffers are of device(), or
  // of host memory for parts on the host. Both in the order of the distinct part's graph.
  struct PartCall {
    const PlannedGraph& graph;
    size_t part;  // index into graph.parts
    std::span<Buffer* const> inputs, outputs;
    double seconds;  // by the device's clock where it has one, else by the wall
  };
  // Called after every part while set: to capture, to compare, to time. Null: nothing is called.
  void set_probe(std::function<void(const PartCall&)> probe);

  // Wall time since the last reset: inside the device's calls, inside calls of parts on the host,
  // and in copies between the two.
  struct Timing {
    double device_seconds = 0, host_seconds = 0, transfer_seconds = 0;
    int64_t launches = 0;
  };
  const Timing& timing() const;
  void reset_timing();

 private:
  Runtime();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace npu
