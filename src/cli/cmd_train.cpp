// npu-lora train: JSON lines in, PEFT adapter out, with checkpoints that continue bit for bit.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/process.h"
#include "base/thread_pool.h"
#include "base/version.h"
#include "cli/checkpoint.h"
#include "cli/commands.h"
#include "cli/drift_watch.h"
#include "cli/environment.h"
#include "cli/run_log.h"
#include "cli/scoring.h"
#include "cli/training.h"
#include "train/device_errors.h"
#include "train/lora_state.h"

namespace npu {
namespace {

TrainConfig train_config(const Options& options) {
  TrainConfig config;
  config.adamw.lr = options.real("lr");
  config.adamw.weight_decay = options.real("weight-decay");
  config.adamw.eps = options.real("eps");
  std::istringstream betas(options.text("betas"));
  if (!(betas >> config.adamw.beta1 >> config.adamw.beta2) || !(betas >> std::ws).eof() ||
      config.adamw.beta1 < 0 || config.adamw.beta1 >= 1 || config.adamw.beta2 < 0 ||
      config.adamw.beta2 >= 1) {
    fail(ErrorKind::kUsage, "--betas", "must be two numbers in [0, 1)",
         "'" + options.text("betas") + "'", "for example --betas \"0.9 0.999\"");
  }
  if (config.adamw.lr < 0 || config.adamw.weight_decay < 0 || config.adamw.eps <= 0) {
    fail(ErrorKind::kUsage, "--lr, --weight-decay, --eps", "must not be negative (eps positive)");
  }
  config.schedule = parse_schedule(options.text("schedule"));
  config.warmup = options.integer("warmup");
  config.steps = options.integer("steps", 1);
  config.grad_clip = options.real("grad-clip");
  config.max_bad_steps = options.integer("max-bad-steps", 1);
  return config;
}

// Every range is checked before anything is loaded: an option must not fail hours into a run.
void check_ranges(const Options& options) {
  for (const char* name : {"keep", "accum", "batch", "steps", "max-bad-steps"}) {
    options.integer(name, 1);
  }
  for (const char* name :
       {"save-every", "eval-every", "warmup", "loss-rows", "skip-bad-rows", "seed"}) {
    options.integer(name, 0);
  }
  parse_loss_scale(options.text("loss-scale"), DType::kF32);
  check_drift_options(options);
  options.choice("on-device-error", {"stop", "host"});
  if (options.real("grad-clip") < 0) {
    fail(ErrorKind::kUsage, "--grad-clip", "must not be negative", options.text("grad-clip"));
  }
  if (options.has("epochs")) {
    const double epochs = options.real("epochs");
    if (epochs <= 0 || epochs > 1e6) {
      fail(ErrorKind::kUsage, "--epochs", "must be above 0 and at most 1e6",
           options.text("epochs"));
    }
    if (options.given("steps")) {
      fail(ErrorKind::kUsage, "--epochs", "can't be given beside --steps", "",
           "--steps counts optimizer steps, --epochs passes over the data");
    }
  }
  if (options.given("eval-every") && options.list("eval-data").empty()) {
    fail(ErrorKind::kUsage, "--eval-every", "needs --eval-data");
  }
}

// An earlier run's results are never overwritten unasked.
void check_out_directory(const Options& options, const fs::path& out) {
  const bool used = fs::exists(out / "adapter_config.json") || fs::exists(out / "checkpoints");
  if (used && !options.has("resume") && !options.flag("overwrite")) {
    fail(ErrorKind::kUsage, "--out", "holds the results of an earlier run", out.string(),
         "--resume auto continues it, --overwrite starts anew, or give another directory");
  }
  if (fs::exists(out) && !fs::is_directory(out)) {
    fail(ErrorKind::kUsage, "--out", "is not a directory", out.string());
  }
  // transformers would take an adapter beside a model for a part of the model.
  if (fs::exists(out / "config.json")) {
    fail(ErrorKind::kUsage, "--out", "must not be a model's directory", out.string(),
         "give a directory of its own for the adapter");
  }
}

// The options that change the mathematics: a checkpoint belongs to one set of them.
std::string options_digest(const Options& options, const LoraSpec& lora, int64_t steps,
                           const SessionOptions& session) {
  std::ostringstream text;
  text << "rank=" << lora.rank << " alpha=" << lora.alpha << " rslora=" << lora.rslora;
  for (const std::string& target : lora.targets) text << " " << target;
  if (options.text("schedule") != "constant") text << " steps=" << steps;
  const auto backend = make_backend(session.backend).take();
  const Traits& traits = backend->traits();
  // A run may go on on another device of the kind.
  text << " backend=" << (traits.code_name.empty() ? traits.name : traits.code_name)
       << " activations=" << dtype_name(session.graphs.layer.activation_dtype)
       << " weights=" << dtype_name(session.graphs.layer.weight_dtype)
       << " recompute=" << (session.graphs.recompute == Recompute::kNone ? "none" : "layer")
       << " loss-rows=" << loss_rows_text(session.graphs);
  // Decided by the memory that is free, so it may differ when a run goes on; where it moves no bit
  // that is nobody's concern.
  if (!traits.prepack_exact) text << " prepack=" << (prepacks(session, traits) != nullptr);
  for (const int64_t seq_len : seq_lengths(options)) text << " seq-len=" << seq_len;
  for (const char* name :
       {"vocab-chunk", "batch", "accum", "lr", "warmup", "schedule", "weight-decay", "betas", "eps",
        "grad-clip", "seed", "packing", "train-on", "numerics", "loss-scale"}) {
    text << " " << name << "=" << options.text(name);
  }
  // How parts are cut and which passes ran decides where a device rounds.
  text << " max-mm=" << (options.has("max-mm") ? options.text("max-mm") : "backend");
  for (const std::string& name : session.plan.passes.disabled) text << " disable-pass=" << name;
  return text.str();
}

// The groups on the host, in a fixed order.
std::vector<std::string> placement_groups(const SessionOptions& session) {
  if (session.host_groups) return {session.host_groups->begin(), session.host_groups->end()};
  std::vector<std::string> groups = make_backend(session.backend).take()->traits().host_parts;
  std::sort(groups.begin(), groups.end());
  return groups;
}

struct Run {
  const Options& options;
  fs::path out;
  HfModel model;
  LoraSpec lora;
  std::vector<Parameter> parameters;
  TrainingData data;
  TrainConfig config;

  explicit Run(const Options& o);
  // What the model's weights and the tokenised rows are, by content.
  std::string content_digest() const;
  void write_adapter(const Trainer& trainer) const;
  void write_run_json(const Trainer& trainer, const Json& extra) const;
};

Run::Run(const Options& o) : options(o), out(o.text("out")), config(train_config(o)) {
  check_ranges(o);
  check_out_directory(o, out);
  model = open_model(o);
  const StartAdapter start = start_adapter(o, model.config);
  lora = start.lora;
  parameters = start.read ? lora_from_tensors(model.config, lora, start.read->tensors)
                          : init_lora(model.config, lora, static_cast<uint64_t>(o.integer("seed")));
}

std::string Run::content_digest() const {
  Sha256 digest;
  for (const TokenRow& row : data.train.rows) {
    digest.update(std::as_bytes(std::span(row.input_ids)));
    digest.update(std::as_bytes(std::span(row.labels)));
  }
  const Tensor norm = model.weights->get("model.norm.weight");
  digest.update(std::span(norm.data(), norm.bytes()));
  return digest.hex();
}

void Run::write_adapter(const Trainer& trainer) const {
  Adapter adapter;
  adapter.lora = lora;
  adapter.base_model_name =
      options.has("base-model-name") ? options.text("base-model-name") : model.base_name;
  for (const Parameter& p : trainer.parameters()) adapter.tensors[p.name] = p.value;
  write_peft_adapter(out, adapter, model.config);
}

void Run::write_run_json(const Trainer& trainer, const Json& extra) const {
  Json json = {{"program", "npu-lora " + std::string(kVersion)},
               {"model", options.text("model")},
               {"data_sha256", data.train.sha256},
               {"rows", data.train.rows.size()},
               {"cut", data.train.cut},
               {"dropped", data.train.dropped},
               {"steps", trainer.step()}};
  for (const auto& [name, values] : options.values()) {
    if (!values.empty())
      json["options"][name] = values.size() == 1 ? Json(values[0]) : Json(values);
  }
  json.update(extra);
  publish_text(out / "run.json", json.dump(2) + "\n");
  publish_text(out / "config.yaml", options.yaml());
}

// What the run depends on beside options and data.
Json run_environment(const SessionOptions& session, const Options& options) {
  const auto backend = open_backend(session);
  const int64_t seed = options.integer("seed");
  return {{"backend", session.backend},
          {"compiler", backend->compiler_version().take()},
          {"host", host_json()},
          {"threads", session.threads == 0 ? usable_cpus() : session.threads},
          {"seeds", {{"adapter", seed}, {"shuffle", seed}}},
          {"libraries", library_versions()}};
}

// The loop: steps, log, checkpoints, signals. Returns the exit code.
class Loop {
 public:
  Loop(const Run& run, Trainer& trainer, Batcher& batcher, ModelRunner& runner, RunLog& log,
       const SessionOptions& session)
      : run_(run),
        trainer_(trainer),
        batcher_(batcher),
        runner_(runner),
        log_(log),
        drift_(run.options, run.model.config, session, *run.model.weights, runner, trainer, log) {
    info_.data_sha256 = run.content_digest();
    info_.options_digest = options_digest(run.options, run.lora, run.config.steps, session);
    info_.placement = placement_groups(session);
  }

  void resume(const fs::path& checkpoint) {
    info_ = load_checkpoint(checkpoint, trainer_, info_);
    batcher_.seek(info_.position);
    if (log_.rewind(trainer_.step())) evaluated_step_ = trainer_.step();
    drift_.move_to_host(info_.host_groups);
    log_.event("resume", {{"checkpoint", checkpoint.string()}}, trainer_.step());
  }

  // Whatever ends it early leaves a checkpoint. What was not finished did not happen, so that a
  // resumed run does it again.
  int run() {
    try {
      return steps_and_evaluations();
    } catch (const UserError&) {
      save_in_need();
      throw;
    }
  }

 private:
  int steps_and_evaluations() {
    const int64_t steps = trainer_.config().steps;
    const int64_t save_every = run_.options.integer("save-every");
    if (trainer_.step() < steps) drift_.prepare();  // what can't be built must not fail hours later
    evaluate_when_due();  // a resumed run may have been stopped before or while it did
    while (trainer_.step() < steps) {
      if (const int signal = stop_signal(); signal != 0) {
        save();
        return 128 + signal;
      }
      one_step();
      const int64_t step = trainer_.step();
      if (save_every > 0 && step % save_every == 0 && step < steps) save();
      evaluate_when_due();
    }
    // What follows may be killed; --resume auto then repeats only that.
    save();
    return evaluate() ? 0 : 128 + stop_signal();
  }

  void one_step() {
    const double start = seconds_now(), cpu_start = cpu_seconds_now();
    std::vector<Batch> micro_batches;
    for (int64_t i = 0; i < run_.options.integer("accum", 1); ++i) {
      micro_batches.push_back(batcher_.next());
    }
    const double data_seconds = seconds_now() - start;
    StepReport report = on_device([&] { return trainer_.train_step(micro_batches); }).take();
    report.data_seconds = data_seconds;
    report.step_seconds += data_seconds;
    report.cpu_seconds = cpu_seconds_now() - cpu_start;
    info_.position = batcher_.position();
    info_.tokens += static_cast<double>(report.tokens);
    log_.step(report, epoch(), info_.tokens);
    if (trainer_.bad_steps_in_a_row() >= trainer_.config().max_bad_steps) {
      fail_input("training",
                 "loss or gradient was not finite in " +
                     std::to_string(trainer_.bad_steps_in_a_row()) + " steps in a row",
                 "", "a lower --lr, --warmup, or `npu-lora check` on this backend");
    }
    watch_drift(micro_batches[0], report.overflow);
  }

  void watch_drift(const Batch& batch, bool overflow) {
    if (on_device([&] { return drift_.after_step(batch, overflow); }).take()) return;
    fail(ErrorKind::kCheckFailed, "--drift-limit", "the run drifts from the reference",
         drift_.why(), "`npu-lora check` names the part group; --drift-action host moves it");
  }

  // What the device is asked to do, done as --on-device-error says.
  template <class Attempt>
  auto on_device(const Attempt& attempt) -> decltype(attempt()) {
    if (run_.options.text("on-device-error") == "stop") return attempt();
    return moving_failures(
        runner_.runtime(), attempt, [this](const std::string& group, const Error& error) {
          log_warn("train", group + " moves to the host: " + error.text());
          drift_.add_moved(group);
          log_.event("moved_to_host", {{"group", group}, {"error", error.text()}}, trainer_.step());
        });
  }

  double epoch() const {
    return static_cast<double>(info_.position.epoch) +
           static_cast<double>(info_.position.batch_in_epoch) /
               static_cast<double>(std::max<int64_t>(1, batcher_.batches_per_epoch()));
  }

  void save() {
    info_.step = trainer_.step();
    info_.bad_steps = trainer_.bad_steps_in_a_row();
    info_.updates = trainer_.updates();
    info_.host_groups = {drift_.moved().begin(), drift_.moved().end()};
    save_checkpoint(run_.out, trainer_, info_, run_.options.integer("keep", 1));
    log_.event("checkpoint", {{"step", info_.step}}, info_.step);
  }

  // The error on its way says more than one of saving.
  void save_in_need() {
    try {
      save();
    } catch (const UserError& e) {
      log_warn("train", "no checkpoint: " + e.error().text());
    }
  }

  void evaluate_when_due() {
    const int64_t every = run_.options.integer("eval-every"), step = trainer_.step();
    if (every > 0 && step > 0 && step % every == 0 && step < trainer_.config().steps) evaluate();
  }

  // False when a signal ended it early.
  bool evaluate() {
    if (run_.data.held_out.rows.empty() || evaluated_step_ == trainer_.step()) return true;
    const std::optional<LossSum> loss =
        on_device([&] {
          return held_out_loss(runner_, run_.data.held_out, [] { return stop_signal() != 0; });
        }).take();
    if (!loss) return false;
    evaluated_step_ = trainer_.step();
    const double mean = loss->nats / static_cast<double>(std::max<int64_t>(1, loss->tokens));
    log_.event("eval",
               {{"step", trainer_.step()},
                {"eval_loss", json_number(mean)},
                {"eval_tokens", loss->tokens}},
               trainer_.step());
    if (!std::isfinite(mean)) log_warn("train", "the held-out loss is not finite");
    return true;
  }

  const Run& run_;
  Trainer& trainer_;
  Batcher& batcher_;
  ModelRunner& runner_;
  RunLog& log_;
  DriftWatch drift_;
  CheckpointInfo info_;
  int64_t evaluated_step_ = -1;
};

}  // namespace

int cmd_train(const Options& options) {
  if (options.flag("quiet")) set_log_level(LogLevel::kWarn);
  const fs::path out = options.text("out");
  std::optional<fs::path> checkpoint;
  if (options.has("resume")) checkpoint = find_checkpoint(out, options.text("resume"));
  if (options.has("resume") && !checkpoint && !options.flag("overwrite") &&
      fs::exists(out / "adapter_config.json")) {
    log_info("train", out.string() + " holds a finished run; --overwrite starts anew");
    return 0;
  }
  Run run(options);
  run.data = load_training_data(options, run.model);
  Batcher batcher(run.data.train, batcher_options(options, run.model));
  if (options.has("epochs")) {
    const double micro_batches =
        options.real("epochs") * static_cast<double>(batcher.batches_per_epoch());
    run.config.steps = std::max<int64_t>(
        1,
        std::llround(std::ceil(micro_batches / static_cast<double>(options.integer("accum", 1)))));
  }
  SessionOptions session = training_session(options, run.lora, run.model.config, &batcher,
                                            !run.data.held_out.rows.empty());
  if (checkpoint && session.auto_placement) {
    // The run goes on where it was, whatever the evidence says by now.
    const std::vector<std::string> groups = checkpoint_placement(*checkpoint);
    session.host_groups.emplace(groups.begin(), groups.end());
    session.auto_placement = false;
  }
  resolve_placement(run.model.config, session, *run.model.weights);
  run.config.loss_scale =
      parse_loss_scale(options.text("loss-scale"), session.graphs.layer.compute_dtype());
  auto runner = start_runner(run.model.config, session, *run.model.weights, options.flag("quiet"));
  fs::create_directories(out);
  const DirectoryLock lock(out, "another run is writing there");
  // Before this there is nothing to save, so a signal just ends the program.
  install_stop_signals();
  Trainer trainer(*runner, std::move(run.parameters), run.config);

  const fs::path log_path =
      options.has("log-file") ? fs::path(options.text("log-file")) : run.out / "train_log.jsonl";
  if (!checkpoint) {
    std::error_code ignored;
    // A new run's own log starts empty; a file that the user named is appended to.
    if (!options.has("log-file")) fs::remove(log_path, ignored);
    if (options.flag("overwrite")) fs::remove_all(run.out / "checkpoints", ignored);
  }
  RunLog log(log_path, run.config.steps, options.flag("quiet"));
  const Json environment = run_environment(session, options);
  run.write_run_json(trainer, environment);
  Loop loop(run, trainer, batcher, *runner, log, session);
  if (checkpoint) loop.resume(*checkpoint);
  Json buckets = Json::array();  // of the epoch that it begins in
  for (const Batcher::Bucket& bucket : batcher.buckets()) {
    buckets.push_back(
        {{"seq_len", bucket.seq_len}, {"sequences", bucket.sequences}, {"rows", bucket.documents}});
  }
  log.event("start",
            {{"backend", session.backend},
             {"rows", run.data.train.rows.size()},
             {"fill_ratio", batcher.fill_ratio()},
             {"loss_rows", session.graphs.loss_rows},
             {"buckets", buckets},
             {"recompute", session.graphs.recompute == Recompute::kNone ? "none" : "layer"}},
            trainer.step());
  const int code = loop.run();
  if (code == 0) {
    run.write_adapter(trainer);
    std::error_code ignored;
    fs::remove_all(run.out / "checkpoints", ignored);
  }
  const Json end = {{"exit_code", code},
                    {"peak_resident_bytes", memory_use().peak_resident_bytes},
                    {"device_bytes", runner->device_bytes()}};
  Json record = environment;
  record.update(end);
  run.write_run_json(trainer, record);
  log.event("end", end, trainer.step());
  return code;
}

}  // namespace npu
