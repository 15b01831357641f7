// --drift-every in a training run.
#include "cli/drift_watch.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/memory_room.h"
#include "train/runner_weights.h"

namespace npu {
namespace {

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %%", 100 * share);
  return text;
}

bool is_other_device(const std::string& backend) {
  return !make_backend(backend).take()->traits().host_cpu;
}

// The reference shares the run's weights; what it keeps for its backward pass comes on top.
bool reference_fits(const ModelConfig& config, const SessionOptions& session) {
  const Prepared prepared = prepare(config, reference_session(session));
  const MemoryEstimate memory = estimate_memory(config, prepared.graphs, nullptr);
  const int64_t needed = memory.total() - memory.weights - memory.optimizer;
  const int64_t available = available_memory_bytes();
  if (needed < available / 5 * 4) return true;
  log_warn("drift", "no first comparison with the CPU: it needs " + std::to_string(needed >> 20) +
                        " MiB of " + std::to_string(available >> 20) +
                        " MiB available; npu-lora check compares beforehand");
  return false;
}

}  // namespace

void check_drift_options(const Options& options) {
  if (options.text("drift-every") != "auto") options.integer("drift-every", 0);
  options.choice("drift-action", {"auto", "stop", "host", "warn"});
  if (const double limit = options.real("drift-limit"); !(limit > 0 && limit <= 10)) {
    fail(ErrorKind::kUsage, "--drift-limit", "must be above 0 and at most 10",
         options.text("drift-limit"));
  }
}

DriftWatch::DriftWatch(const Options& options, const ModelConfig& config,
                       const SessionOptions& session, const WeightStore& weights,
                       ModelRunner& runner, Trainer& trainer, RunLog& log)
    : runner_(runner),
      trainer_(trainer),
      log_(log),
      monitor_([&config, &weights, &runner, session] {
        Prepared prepared = npu::prepare(config, reference_session(session));
        compile(prepared);
        return load(config, std::move(prepared), *weights_of(runner, weights),
                    /*adopt_weights=*/true);
      }),
      once_(options.text("drift-every") == "auto" && is_other_device(session.backend) &&
            reference_fits(config, session)),
      every_(options.text("drift-every") == "auto" ? 0 : options.integer("drift-every")),
      pending_(once_),
      limit_(options.real("drift-limit")),
      action_(options.text("drift-action")) {}

std::optional<Error> DriftWatch::place(const std::vector<std::string>& candidates,
                                       const HostGroups& on_host) {
  for (const std::string& group : candidates) {
    const bool to_host = on_host.contains(group);
    if (auto error = runner_.runtime().place_group(group, to_host, "drift from the reference")) {
      return error;
    }
  }
  return std::nullopt;
}

void DriftWatch::move_to_host(const std::vector<std::string>& groups) {
  moved_ = {groups.begin(), groups.end()};
  if (auto error = place(groups, moved_)) throw UserError(*error);
}

void DriftWatch::log_report(const DriftReport& report, const char* verdict) {
  const Comparison& c = report.comparison;
  Json fields = {{"step", trainer_.step()},
                 {"loss", json_number(c.loss)},
                 {"reference_loss", json_number(c.reference_loss)},
                 {"loss_gap", json_number(c.loss - c.reference_loss)},
                 {"worst_grad_rel", json_number(c.worst_grad_rel)},
                 {"worst_grad", c.grads.empty() ? "" : c.grads[0].name},
                 {"min_cosine", json_number(c.min_cosine)},
                 {"seconds", report.seconds},
                 {"verdict", verdict}};
  if (!c.finite) fields["nonfinite"] = true;
  log_.event("drift", fields, trainer_.step());
}

void DriftWatch::prepare() {
  if (once_ || every_ > 0) monitor_.prepare();
}

bool DriftWatch::due(bool possible) {
  const int64_t step = trainer_.step();
  pending_ = pending_ || (every_ > 0 && (step == 1 || step % every_ == 0));
  return pending_ && possible;
}

std::string DriftWatch::verdict(const DriftReport& report) const {
  if (report.within(limit_)) return "pass";
  if (action_ != "auto") return action_;
  return every_ > 0 || report.gross() ? "stop" : "warn";
}

Result<bool> DriftWatch::after_step(const Batch& batch, bool overflow) {
  if (!due(!overflow && !loss_rows(batch).empty())) return true;
  const double scale = trainer_.loss_scaler().scale();
  const Result<DriftReport> report = monitor_.measure(runner_, trainer_.parameters(), batch, scale);
  if (!report.ok()) return report.error();
  const std::string action = verdict(report.value());
  log_report(report.value(), action.c_str());
  const Comparison& c = report.value().comparison;
  why_ = "loss " + percent(c.loss_rel) + ", worst gradient " + percent(c.worst_grad_rel) + " (" +
         (c.grads.empty() ? "" : c.grads[0].name) + ") off the reference at step " +
         std::to_string(trainer_.step()) + (c.finite ? "" : ", not all finite");
  Result<bool> goes_on = action != "stop";
  if (action == "host" || action == "warn") log_warn("drift", why_);
  if (action == "host") goes_on = move_until_within(batch, scale);
  if (!goes_on.ok()) return goes_on;  // still due
  pending_ = false;
  if (once_) monitor_.release();
  return goes_on;
}

Result<bool> DriftWatch::move_until_within(const Batch& batch, double loss_scale) {
  const std::vector<std::string> candidates = groups_on_device(runner_.runtime().plan());
  const auto measure = [&](const HostGroups& on_host) -> Result<DriftReport> {
    if (auto error = place(candidates, on_host)) return *error;
    return monitor_.measure_again(runner_, batch, loss_scale);
  };
  const auto groups = groups_to_move(candidates, limit_, measure);
  if (!groups.ok()) {
    if (auto error = place(candidates, {})) return *error;
    return groups.error();
  }
  if (!groups.value()) {
    why_ += "; moving parts to the host does not help";
    return false;
  }
  const Result<DriftReport> after = measure(*groups.value());
  if (!after.ok()) return after.error();
  log_report(after.value(), "moved");
  for (const std::string& group : *groups.value()) {
    moved_.insert(group);
    log_warn("drift", group + " moves to the host");
    log_.event("moved_to_host", {{"group", group}, {"error", why_}}, trainer_.step());
  }
  return true;
}

}  // namespace npu
