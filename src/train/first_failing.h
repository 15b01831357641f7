// Which parts of a plan a backend's compiler fails on, and the smallest graph that shows it.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "compile/plan.h"
#include "train/shrink.h"

namespace npu {

// Compiles graphs one at a time as a run would: unsupported nodes first, then in a child under the
// limits of `settings`, with the cache between (one that can't be written is a warning). Safe to
// call from several threads.
class TrialCompiler {
 public:
  // Error (UserError): the compiler is not there.
  TrialCompiler(Backend& backend, const CompileOptions& options, const CompileSettings& settings);
  // The verdict alone, without the blob.
  CompileOutcome compile(const Graph& graph, double seconds_limit);
  // With the blob, and not from the cache.
  CompileOutcome build(const Graph& graph);
  // A graph smaller than one that took this long is taken to hang after ten times that, and at
  // least ten seconds: searching a hang must not take `settings.seconds_limit` a step.
  double trial_seconds_limit() const;

 private:
  std::optional<CompileOutcome> unsupported(const Graph& graph);
  CompileOutcome run(const Graph& graph, const std::string& text, double seconds_limit,
                     bool& lasting);
  void store(const CacheKey& key, const CompileOutcome& outcome);

  Backend& backend_;
  CompileOptions options_;
  CompileSettings settings_;
  std::string compiler_;
  Cache cache_;
  std::mutex backend_mutex_;
  bool warned_ = false;  // that the cache can't be written
  std::atomic<double> longest_seconds_ = 0;
};

struct FailingPart {
  std::string part, group;  // first use, "layer_fwd.2"
  int uses = 0;
  size_t nodes = 0;        // of the part, without inputs
  CompileOutcome outcome;  // of the part
  ShrunkGraph smallest;
  std::vector<std::string> ops;  // of the smallest graph, in order
  std::string op;                // the one to name: what the backend names, else the last
};

// Parts of `plan` that fail, in its order; `only` names one part (any of its uses), "" means all.
// Unknown names are a kUsage UserError that lists the known ones.
std::vector<FailingPart> first_failing_nodes(const Plan& plan, const std::string& only,
                                             TrialCompiler& compiler, double seconds_limit,
                                             const ShrinkOptions& options);

// The distinct part that `name` ("layer_fwd.2", any use) stands for.
size_t find_part(const Plan& plan, const std::string& name);

}  // namespace npu
