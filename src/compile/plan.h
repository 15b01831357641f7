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

struct PlanOptions {
  PartLimits limits;  // from Traits unless the user sets --max-mm
  PassOptions passes;
  std::set<std::string, std::less<>> host_groups;  // --host-parts
  CompileOptions compile;
};

// One part of one graph and where it will run.
struct PlannedPart {
  size_t distinct = 0;                   // index into Plan::distinct
  std::vector<std::string> input_names;  // the graph's name for each input of the canonical part
  std::vector<std::string> output_names;
  bool on_host = false;
  std::string host_reason;  // "--host-parts", "rejected: …", "unsupported: …"
};

// A graph of the model (layer_fwd, ce_grad, …) as an ordered list of parts.
struct PlannedGraph {
  std::string group;  // placement group: fwd, bwd, rms, ce-stats, ce-grad, rms-bwd
  std::string name;   // "layer_fwd"
  Graph graph;        // after the passes
  std::vector<PlannedPart> parts;
  std::map<std::string, TensorType, std::less<>> temporaries;  // values that cross parts
};

// A part that is compiled once however often it is used.
struct DistinctPart {
  Graph graph;                   // canonical
  std::string text;              // its printed form
  std::string group, first_use;  // "fwd", "layer_fwd.2"
  int uses = 0;
  std::optional<CompileOutcome> outcome;
  std::string cache_digest;  // its entry in the cache; set with `outcome`
};

struct Plan {
  std::vector<PlannedGraph> graphs;
  std::vector<DistinctPart> distinct;
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
  PartOrigin origin;               // the options of this run, kept with what is built
  // argv of the compile child; empty: compile in this process, one by one and without limits.
  std::vector<std::string> worker;
  std::function<void(size_t done, size_t total, std::string_view what)> progress;
};

struct CompileReport {
  size_t built = 0, cached = 0;
  struct Failure {
    std::string part, outcome, reason;
  };
  std::vector<Failure> failed;
  double seconds = 0;
};
// Fills the outcome of every distinct part that runs on the device, from the cache or by compiling;
// a part that fails is moved to the host with its reason. Parts on the host are compiled by the
// `cpu` backend at load. Each outcome is cached when it is there, so an interrupted call can be
// repeated. UserErrors: the compiler is missing; expect_cached did not hold.
CompileReport compile_plan(Plan& plan, Backend& backend, const CompileOptions& options,
                           const CompileSettings& settings);

// The child's side: one job on stdin (backend name, options, part text), the result on stdout.
// Returns the exit code.
int compile_worker_main();

// Loaded executables of a plan on one device, plus a cpu device for parts on the host.
class Runtime {
 public:
  // Failures of loading (device lost, blob refused) are kRetriable Errors.
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
