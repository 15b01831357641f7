// From a model and options to a runner that is ready: graphs, plan, compiled parts, loaded weights.
// Every command that runs a model goes through here, so that all of them place and compile alike.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "compile/plan.h"
#include "model/weights.h"
#include "train/runner.h"

namespace npu {

struct SessionOptions {
  std::string backend = "auto";
  GraphOptions graphs;
  PlanOptions plan;
  // Unset: from the backend's traits.
  std::optional<int64_t> max_contractions;  // --max-mm
  std::optional<DType> activation_dtype;    // --dtype
  std::optional<std::set<std::string, std::less<>>> host_groups;
  // --host-parts auto: host_groups is still to be found (train/placement.h).
  bool auto_placement = false;
  CompileSettings compile;
  // Options of the vendor's compiler by name (Traits::options), where they are not its defaults.
  std::map<std::string, std::string, std::less<>> vendor;
  std::string code_of;  // Backend::take_code_of, where the compiler is not installed
  int threads = 0;
  // CPU seconds that compiling a part is forecast to take at most, where forecasts choose the cut;
  // unset: as the backend has it.
  std::optional<double> part_seconds;
  std::optional<bool> prepack;  // unset: as the backend does by default
};

// The session's backend.
std::unique_ptr<Backend> open_backend(const SessionOptions& options);

// R of every bucket, the shortest bucket's first: "32,128".
std::string loss_rows_text(const GraphOptions& graphs);

// CompileOptions::vendor of a backend: what is given of its options, else their defaults.
std::vector<std::pair<std::string, std::string>> vendor_options(
    const Traits& traits, const std::map<std::string, std::string, std::less<>>& given);

// The backend that a run on `backend` is compared with.
std::string reference_backend(std::string_view backend);
// The same graphs, uncut and unplaced, on a CPU backend.
SessionOptions whole_on(const SessionOptions& session, const std::string& backend);

// A backend chosen, graphs built and cut; nothing compiled yet. Needs only the model's config, and
// a placement that is found (no auto_placement).
struct Prepared {
  std::unique_ptr<Backend> backend;
  ModelGraphs graphs;
  Plan plan;
  SessionOptions options;  // with what was filled in from the traits
};
Prepared prepare(const ModelConfig& config, SessionOptions options);

// Compiles (or takes from the cache) every distinct part. Throws when `expect_cached` was broken.
CompileReport compile(Prepared& prepared);
// The cut and placement that compile() would come to, as far as the cache knows; compiles nothing.
CompileReport recall(Prepared& prepared);

// Loads parts and weights, which with `adopt_weights` stay where they are if the device can use
// them there. The prepared plan is consumed.
std::unique_ptr<ModelRunner> load(const ModelConfig& config, Prepared prepared,
                                  const WeightStore& weights, bool adopt_weights = false);

// Bytes that a run holds on the device and, on host-memory backends, in this process.
struct MemoryEstimate {
  int64_t weights = 0, prepacked = 0, activations = 0, saved = 0, head = 0, optimizer = 0;
  int64_t total() const { return weights + prepacked + activations + saved + head + optimizer; }
};
// `prepack`: of the backend that keeps frozen weights in other forms too; null when none does.
MemoryEstimate estimate_memory(const ModelConfig& config, const ModelGraphs& graphs,
                               const Traits* prepack);
// The traits of a session's backend if it prepacks, else null.
const Traits* prepacks(const SessionOptions& options, const Traits& traits);
inline const Traits* prepacks(const Prepared& prepared) {
  return prepacks(prepared.options, prepared.backend->traits());
}

// Floating-point operations a second that one product of this model's sizes reaches on the host:
// what `plan` estimates with. Takes a few hundredths of a second.
double host_matmul_rate(const ModelConfig& config, const LayerOptions& options, int threads);

}  // namespace npu
