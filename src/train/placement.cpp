// The choice: placements by rising time until one passes.
#include "train/placement.h"

#include "base/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace npu {
namespace {

constexpr size_t kMostTrials = 16;
constexpr double kShareOfLimit = 0.8;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double estimate(const std::vector<GroupMeasure>& groups, const HostGroups& on_host) {
  double seconds = 0;
  for (const GroupMeasure& g : groups) {
    seconds += on_host.contains(g.group) ? g.host_seconds : g.device_seconds;
  }
  return seconds;
}

class Chooser {
 public:
  Chooser(Placement& placement, const TryPlacement& compare, const CheckLimits& limits)
      : placement_(placement),
        compare_(compare),
        limits_{limits.loss_rel * kShareOfLimit, limits.grad_rel * kShareOfLimit} {
    for (const GroupMeasure& g : placement.groups) all_.insert(g.group);
  }

  void run() {
    measure_groups();
    HostGroups chosen = all_;
    size_t tries = 0;
    for (const HostGroups& on_host : by_time()) {
      if (on_host == all_) break;  // needs no trial
      if (hopeless(on_host)) continue;
      if (tries++ == kMostTrials) break;
      if (!passes(on_host)) continue;
      chosen = on_host;
      break;
    }
    // The bound must not cost the placement that the backend's author found.
    HostGroups usual = fixed_;
    for (const std::string& group : placement_.default_groups) {
      if (all_.contains(group)) usual.insert(group);
    }
    placement_.default_seconds = estimate(placement_.groups, usual);
    if (chosen == all_ && !hopeless(usual) &&
        placement_.default_seconds < estimate(placement_.groups, all_) && passes(usual)) {
      chosen = usual;
    }
    placement_.host_groups = chosen;
    placement_.step_seconds = estimate(placement_.groups, chosen);
  }

 private:
  // Each group alone on the device.
  void measure_groups() {
    for (GroupMeasure& g : placement_.groups) {
      if (!g.on_device) {
        fixed_.insert(g.group);
        continue;
      }
      HostGroups others = all_;
      others.erase(g.group);
      const Comparison alone = compare_(others, /*all_layers=*/false);
      g.grad_rel = alone.finite ? alone.worst_grad_rel : kInfinite;
      g.loss_rel = alone.finite ? alone.loss_rel : kInfinite;
      if (!alone.pass(limits_)) record(others, alone);
    }
  }

  // Every placement of the groups that can move, fastest first; of equals the one with less on the
  // host.
  std::vector<HostGroups> by_time() const {
    std::vector<HostGroups> placements = {fixed_};
    for (const GroupMeasure& g : placement_.groups) {
      if (!g.on_device) continue;
      for (size_t i = 0, count = placements.size(); i < count; ++i) {
        placements.push_back(placements[i]);
        placements.back().insert(g.group);
      }
    }
    std::stable_sort(
        placements.begin(), placements.end(), [&](const HostGroups& a, const HostGroups& b) {
          const double x = estimate(placement_.groups, a), y = estimate(placement_.groups, b);
          return x != y ? x < y : a.size() < b.size();
        });
    return placements;
  }

  const PlacementTrial* tried(const HostGroups& on_host) const {
    const auto& trials = placement_.trials;
    const auto found = std::find_if(trials.begin(), trials.end(), [&](const PlacementTrial& t) {
      return t.host_groups == on_host;
    });
    return found == trials.end() ? nullptr : &*found;
  }

  // All that failed with these groups on the device, and more are there now.
  bool hopeless(const HostGroups& on_host) const {
    return std::any_of(placement_.trials.begin(), placement_.trials.end(),
                       [&](const PlacementTrial& t) {
                         return !t.pass && std::includes(t.host_groups.begin(), t.host_groups.end(),
                                                         on_host.begin(), on_host.end());
                       });
  }

  bool passes(const HostGroups& on_host) {
    const PlacementTrial* known = tried(on_host);
    return known ? known->pass : record(on_host, compare_(on_host, /*all_layers=*/true));
  }

  bool record(const HostGroups& on_host, const Comparison& comparison) {
    PlacementTrial trial;
    trial.host_groups = on_host;
    trial.step_seconds = estimate(placement_.groups, on_host);
    trial.pass = comparison.pass(limits_);
    trial.grad_rel = comparison.finite ? comparison.worst_grad_rel : kInfinite;
    trial.loss_rel = comparison.finite ? comparison.loss_rel : kInfinite;
    placement_.trials.push_back(std::move(trial));
    return placement_.trials.back().pass;
  }

  Placement& placement_;
  const TryPlacement& compare_;
  const CheckLimits limits_;
  HostGroups all_, fixed_;  // fixed_: groups that can only run on the host
};

std::string format(const char* pattern, auto... values) {
  char text[160];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

}  // namespace

void choose_placement(Placement& placement, const TryPlacement& compare,
                      const CheckLimits& limits) {
  Chooser(placement, compare, limits).run();
}

std::vector<std::string> describe_placement(const Placement& placement) {
  std::vector<std::string> lines;
  for (const GroupMeasure& g : placement.groups) {
    std::string line = g.group + ": device " +
                       format("%.4g s, host %.4g s a step", g.device_seconds, g.host_seconds);
    line += g.on_device ? format("; alone on the device worst gradient error %.3g %%, loss %.2g %%",
                                 100 * g.grad_rel, 100 * g.loss_rel)
                        : "; the device runs no part of it";
    lines.push_back(std::move(line));
  }
  for (const PlacementTrial& t : placement.trials) {
    lines.push_back("tried " + names_or_none(t.host_groups) + " on the host: " +
                    format("%.4g s, worst gradient error %.3g %%, loss %.2g %%: ", t.step_seconds,
                           100 * t.grad_rel, 100 * t.loss_rel) +
                    (t.pass ? "passes" : "fails"));
  }
  lines.push_back("chosen: " + names_or_none(placement.host_groups) + " on the host, " +
                  format("%.4g s a step; the backend's default, ", placement.step_seconds) +
                  names_or_none(placement.default_groups) +
                  format(" on the host, %.4g s", placement.default_seconds));
  return lines;
}

}  // namespace npu
