// Measuring: what each group costs on the device and on the host, and what placements come to.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/cpu_model.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "base/thread_pool.h"
#include "ir/text.h"
#include "train/lora_state.h"
#include "train/placement.h"
#include "train/step_clock.h"

namespace npu {
namespace {

constexpr int64_t kFewLayers = 2;   // that the walk over placements is done on
constexpr uint64_t kSeed = 0x706c;  // of adapters and tokens
constexpr char kReason[] = "--host-parts auto";

std::string machine_name() {
  const std::string model = cpu_model();
  return model.empty() ? "unknown CPU" : model;
}

ModelConfig first_layers(ModelConfig config, int64_t layers) {
  config.num_hidden_layers = std::min(layers, config.num_hidden_layers);
  return config;
}

// Random tokens; loss on as many rows as pass the head at a time.
Batch trial_batch(const ModelConfig& config, const GraphOptions& options) {
  const RandomStream random(kSeed, "placement batch");
  Batch batch;
  batch.batch = batch.num_documents = options.layer.batch;
  batch.seq_len = options.layer.seq_len;
  int64_t left = options.loss_rows;
  for (int64_t i = 0; i < batch.rows(); ++i) {
    const auto token = static_cast<int32_t>(random.bits(static_cast<uint64_t>(i)) %
                                            static_cast<uint64_t>(config.vocab_size));
    const int64_t position = i % batch.seq_len;
    batch.input_ids.push_back(token);
    batch.labels.push_back(position > 0 && left-- > 0 ? token : kNoLoss);
    batch.segments.push_back(0);
    batch.positions.push_back(static_cast<int32_t>(position));
  }
  return batch;
}

// What a step says: loss and gradients where the graphs train, the loss of scoring where they
// score.
using Outcome = std::vector<RunResult>;

// A model of some layers on the device, whose groups move as asked, and the run on the host that it
// is compared with.
class Bench {
 public:
  Bench(const ModelConfig& config, const SessionOptions& session, const WeightStore& weights,
        bool timed)
      : config_(config),
        session_(session),
        weights_(weights),
        batch_(trial_batch(config, session.graphs)) {
    {
      const auto host = start({kPlacementGroups.begin(), kPlacementGroups.end()});
      reference_ = run(*host);
      if (timed) reference_ = run(*host);  // warm now
    }                                      // before the other takes its memory
    host_clock_ = std::move(clock_);
    clock_ = {};
    runner_ = start({});
  }

  Comparison compare(const HostGroups& on_host) {
    for (const std::string& group : all_groups()) {
      const bool to_host = on_host.contains(group) || lost_.contains(group);
      if (auto error = runner_->runtime().place_group(group, to_host, kReason)) {
        throw UserError(*error);
      }
    }
    Comparison worst;
    try {
      const Outcome outcome = run(*runner_);
      for (size_t i = 0; i < outcome.size(); ++i) {
        const Comparison c = compare_runs(outcome[i], reference_[i]);
        worst.finite = worst.finite && c.finite;
        worst.loss_rel = std::max(worst.loss_rel, c.loss_rel);
        worst.worst_grad_rel = std::max(worst.worst_grad_rel, c.worst_grad_rel);
      }
    } catch (const UserError& e) {
      if (runner_->runtime().failed_group().empty()) throw;  // not the device
      log_warn("placement", e.error().text());
      worst.finite = lasting_ = false;
    }
    return worst;
  }

  // Whether all of it would come out again: no call failed on the device, no part was left untried.
  bool lasting() const { return lasting_; }

  // All groups on the device; a group that fails there goes to the host for good.
  void time_device() {
    for (size_t tries = 0; tries <= all_groups().size(); ++tries) {
      if (compare({}).finite || runner_->runtime().failed_group().empty()) break;
      lost_.insert(runner_->runtime().failed_group());
    }
    compare({});
  }

  std::vector<GroupMeasure> measures(int64_t layers) {
    time_device();
    const auto on_device = clock_.group_seconds(graphs_, layers);
    const auto on_host = host_clock_.group_seconds(graphs_, layers);
    std::vector<GroupMeasure> groups;
    for (const std::string& group : all_groups()) {
      GroupMeasure g;
      g.group = group;
      const auto device = on_device.find(group), host = on_host.find(group);
      g.on_device = has_device_part(group) && device != on_device.end();
      if (host != on_host.end()) g.host_seconds = host->second;
      g.device_seconds = g.on_device ? device->second : g.host_seconds;
      groups.push_back(std::move(g));
    }
    return groups;
  }

 private:
  // Of the graphs that there are.
  HostGroups all_groups() const {
    HostGroups groups;
    for (const NamedGraph& graph : graphs_.graphs) groups.insert(graph.group);
    return groups;
  }

  bool has_device_part(const std::string& group) {
    if (lost_.contains(group)) return false;
    for (const PlannedGraph& graph : runner_->runtime().plan().graphs) {
      if (graph.group != group) continue;
      for (const PlannedPart& part : graph.parts) {
        if (!part.on_host) return true;
      }
    }
    return false;
  }

  std::unique_ptr<ModelRunner> start(const HostGroups& on_host) {
    SessionOptions session = session_;
    session.host_groups = on_host;
    Prepared prepared = prepare(config_, session);
    graphs_ = prepared.graphs;
    lasting_ = npu::compile(prepared).lasting && lasting_;
    auto runner = load(config_, std::move(prepared), weights_);
    runner->runtime().set_probe([this](const Runtime::PartCall& call) { clock_.add(call); });
    return runner;
  }

  Outcome run(ModelRunner& runner) {
    Outcome outcome;
    std::vector<Parameter> parameters =
        init_lora(config_, session_.graphs.layer.lora, kSeed, kCheckBStd);
    if (session_.graphs.train) {
      outcome.push_back(run_once(runner, std::move(parameters), batch_));
    } else {
      runner.set_adapter(parameters);
    }
    if (session_.graphs.eval) {
      const std::vector<RowTarget> targets = loss_rows(batch_);
      RunResult scored;
      for (const TokenScore& score : runner.score(batch_, targets).take()) {
        scored.loss -= score.log_prob / static_cast<double>(targets.size());
      }
      outcome.push_back(std::move(scored));
    }
    return outcome;
  }

  ModelConfig config_;
  SessionOptions session_;
  const WeightStore& weights_;
  Batch batch_;
  ModelGraphs graphs_;
  StepClock clock_, host_clock_;
  Outcome reference_;
  std::unique_ptr<ModelRunner> runner_;
  HostGroups lost_;  // groups that the device failed on
  bool lasting_ = true;
};

// `lasting` gets whether the same would be measured again.
Placement measure(const ModelConfig& config, const SessionOptions& session,
                  const WeightStore& weights, Placement placement, bool& lasting) {
  Bench few(first_layers(config, kFewLayers), session, weights, /*timed=*/true);
  placement.groups = few.measures(placement.layers);
  std::unique_ptr<Bench> whole;
  const TryPlacement compare = [&](const HostGroups& on_host, bool all_layers) {
    Comparison result = few.compare(on_host);
    // Rounding that two layers forgive may add up. Only placements that stand a chance are worth a
    // step of the whole model.
    if (!all_layers || placement.layers <= kFewLayers || !result.pass(CheckLimits{})) return result;
    if (!whole) whole = std::make_unique<Bench>(config, session, weights, /*timed=*/false);
    return whole->compare(on_host);
  };
  choose_placement(placement, compare, CheckLimits{});
  lasting = few.lasting() && (!whole || whole->lasting());
  return placement;
}

// As the measurement and the digest need it: without a placement, and with the graphs for
// evaluation whether this command has them or not, so that all that train share their evidence.
SessionOptions unplaced(SessionOptions session) {
  session.auto_placement = false;
  session.host_groups.reset();
  session.graphs.eval = true;
  return session;
}

}  // namespace

Result<std::string> placement_digest(const Prepared& prepared, int64_t layers) {
  Result<std::string> compiler = prepared.backend->compiler_version();
  if (!compiler) return compiler.error();
  const Traits& traits = prepared.backend->traits();
  const PartLimits& limits = prepared.plan.limits;
  Sha256 digest;
  const auto add = [&digest](const std::string& text) {
    digest.update(std::to_string(text.size()) + ":" + text);
  };
  add("placement 2");
  for (const std::string& text : {traits.name, compiler.value(), machine_name()}) add(text);
  for (const int64_t number : {limits.contractions, limits.nodes, limits.inputs, limits.outputs,
                               layers, int64_t{prepared.options.threads}, int64_t{usable_cpus()},
                               int64_t{prepared.options.compile.adaptive_cut},
                               prepared.options.compile.memory_limit_bytes}) {
    add(std::to_string(number));
  }
  for (const double seconds :
       {prepared.options.compile.seconds_limit, prepared.options.compile.seconds_budget}) {
    char text[32];
    std::snprintf(text, sizeof text, "%.17g", seconds);
    add(text);
  }
  for (const auto& [name, value] :
       prepared.backend->key_options(prepared.options.plan.compile, KeyUse::kCode)) {
    add(name + "=" + value);
  }
  for (const PlannedGraph& graph : prepared.plan.graphs) add(print_graph(graph.graph));
  return digest.hex();
}

std::optional<Placement> known_placement(const ModelConfig& config, const SessionOptions& session) {
  const Prepared prepared = prepare(config, unplaced(session));
  const Result<std::string> digest = placement_digest(prepared, config.num_hidden_layers);
  if (!digest) return std::nullopt;
  return read_placement(session.compile.cache_dir, digest.value());
}

Placement find_placement(const ModelConfig& config, const SessionOptions& session,
                         const WeightStore& weights) {
  const Prepared prepared = prepare(config, unplaced(session));
  Placement placement;
  placement.digest = placement_digest(prepared, config.num_hidden_layers).take();
  if (auto known = read_placement(session.compile.cache_dir, placement.digest)) {
    return std::move(*known);
  }
  const Traits& traits = prepared.backend->traits();
  placement.backend = traits.name;
  placement.compiler = prepared.backend->compiler_version().take();
  placement.machine = machine_name();
  placement.layers = config.num_hidden_layers;
  placement.default_groups = {traits.host_parts.begin(), traits.host_parts.end()};
  log_info("placement", "measuring what each group costs on " + traits.name + " and on the host");
  bool lasting = true;
  placement = measure(config, unplaced(session), weights, std::move(placement), lasting);
  if (!lasting) {
    log_warn("placement",
             "evidence not stored: a call failed on the device, or a part was not compiled for a "
             "passing reason; the next run measures again");
    return placement;
  }
  try {
    write_placement(session.compile.cache_dir, placement);
  } catch (const UserError& e) {
    log_warn("placement", "evidence not stored: " + e.error().text());
  }
  return placement;
}

}  // namespace npu
