// `--host-parts auto`: which placement groups run on the host, decided by measured error and time
// (docs/decisions/008-adaptive-cut-and-placement.md).
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "train/check.h"
#include "train/session.h"

namespace npu {

using HostGroups = std::set<std::string, std::less<>>;

// What was measured of one group.
struct GroupMeasure {
  std::string group;
  double device_seconds = 0,
         host_seconds = 0;  // of one step of the whole model, transfers included
  // With only this group on the device; infinite where that gives no finite result.
  double grad_rel = 0, loss_rel = 0;
  bool on_device = true;  // false: it has no part that the device can run
};

// One placement that was compared with the run that is all on the host. A group that fails alone on
// the device is a trial too.
struct PlacementTrial {
  HostGroups host_groups;
  double step_seconds = 0;  // estimate: the sum over the groups
  double grad_rel = 0, loss_rel = 0;
  bool pass = false;
};

// A decision with its evidence.
struct Placement {
  std::string digest;                      // of what it belongs to
  std::string backend, compiler, machine;  // for people: all are in the digest
  int64_t layers = 0;                      // of the model that the seconds are for
  std::vector<GroupMeasure> groups;
  std::vector<PlacementTrial> trials;  // in the order in which they were tried
  HostGroups default_groups;           // the backend's own, for comparison
  double default_seconds = 0;          // estimate for those
  HostGroups host_groups;              // chosen
  double step_seconds = 0;             // estimate
};

// What a run with these groups on the host comes to, against all on the host: of the first layers,
// or of all layers too. A device that fails is a comparison that is not finite.
using TryPlacement = std::function<Comparison(const HostGroups&, bool all_layers)>;

// Fills errors, trials and choice from the groups' times. Tries placements by rising estimate,
// leaving out those that put all groups of a failed one on the device, and takes the first that
// passes within 80 % of the limits: other batches differ a little. The number of trials is bounded;
// all on the host passes untried.
void choose_placement(Placement& placement, const TryPlacement& compare, const CheckLimits& limits);

// What a placement belongs to: the graphs, their limits and passes, the backend, its compiler and
// the limits of compiling, this machine and the number of threads. Errors: the compiler is missing.
Result<std::string> placement_digest(const Prepared& prepared, int64_t layers);

// CACHE/placement/DIGEST.json. Damaged evidence is dropped with a warning; the directory is
// untrusted.
std::optional<Placement> read_placement(const fs::path& cache_dir, const std::string& digest);
void write_placement(const fs::path& cache_dir, const Placement& placement);

// Its JSON text, and back. Errors: not as written, or groups and numbers that can't be.
std::string print_evidence(const Placement& placement);
Result<Placement> parse_evidence(std::string_view text, const std::string& where);

// For people, one line a group, a trial, and the choice.
std::vector<std::string> describe_placement(const Placement& placement);

// The evidence for this session if it is there.
std::optional<Placement> known_placement(const ModelConfig& config, const SessionOptions& session);

// The evidence, or else measured now: two layers of the model on the device and on the host, then
// the choice at full depth. Compiles what is not in the cache. What it measures is kept in the
// cache directory, unless an accident had a say in it: a call that failed on the device, a part
// that was not tried or whose compiler did not answer. A directory that can't be written is a
// warning.
Placement find_placement(const ModelConfig& config, const SessionOptions& session,
                         const WeightStore& weights);

}  // namespace npu
