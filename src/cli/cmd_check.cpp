// npu-lora check: loss and every LoRA gradient of a backend against the CPU, and both against f32.
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/check_inputs.h"
#include "cli/check_report.h"
#include "io/safetensors.h"
#include "train/step_clock.h"

namespace npu {
namespace {

// A step of cpu:reference's own kernels at about 1 GFLOP/s; more than half a minute of them is not
// worth a table that was not asked for.
constexpr double kCheapJudgeFlops = 3e10;

void dump(const std::string& path, const RunResult& run) {
  std::map<std::string, Tensor> tensors;
  tensors["loss"] = Tensor::scalar_f32(static_cast<float>(run.loss));
  for (const Parameter& p : run.parameters) tensors[peft_name(p.name)] = p.grad;
  write_safetensors(path, tensors);
}

double step_flops(const ModelConfig& config, const Plan& plan, const ModelGraphs& graphs) {
  double flops = 0;
  for (const PlannedGraph& graph : plan.graphs) {
    const int64_t calls = graphs.calls_per_step(graph.name, config.num_hidden_layers);
    flops += static_cast<double>(calls) * graph.graph.contraction_flops();
  }
  return flops;
}

class Check {
 public:
  explicit Check(const Options& options)
      : options_(options), in_(read_check_inputs(options)), session_(check_session(options, in_)) {
    report_.model = options.text("model");
    report_.backend = session_.backend;
    report_.reference = reference_backend(session_.backend);
    if (options.has("reference")) report_.reference = options.text("reference");
    const LayerOptions& layer = session_.graphs.layer;
    report_.layers = in_.config.num_hidden_layers;
    report_.batch = layer.batch;
    report_.seq_len = layer.seq_len;
    report_.dtype = dtype_name(*session_.activation_dtype);
    report_.weight_dtype = dtype_name(layer.weight_dtype);
    report_.numerics = options.text("numerics");
  }

  // Returns the exit code.
  int run() {
    const bool alone = report_.reference == "none";
    resolve_placement(in_.config, session_, *in_.weights);
    run_device(!alone);
    if (options_.has("dump")) dump(options_.text("dump"), device_.front());
    if (alone) {
      std::cout << (options_.flag("json") ? Json{{"loss", device_.front().loss}}.dump()
                                          : "loss " + std::to_string(device_.front().loss))
                << "\n";
      return 0;
    }
    reference_ = run_session(whole_on(session_, report_.reference), in_, quiet());
    report_.versus_reference = compare(device_, reference_);
    for (size_t i = 0; i < device_.size(); ++i) {
      report_.seeds.push_back({in_.cases[i].seed, compare_runs(device_[i], reference_[i])});
    }
    compare_with_fp32();
    blame();
    if (options_.has("html")) publish_text(options_.text("html"), check_html(report_));
    if (options_.flag("json")) {
      std::cout << check_json(report_).dump(2) << "\n";
    } else {
      print_check(std::cout, report_, static_cast<size_t>(options_.integer("top", 1)));
    }
    return report_.pass() ? 0 : static_cast<int>(ErrorKind::kCheckFailed);
  }

 private:
  bool quiet() const { return options_.flag("quiet"); }

  static Comparison compare(const std::vector<RunResult>& runs,
                            const std::vector<RunResult>& references) {
    std::vector<Comparison> comparisons;
    for (size_t i = 0; i < runs.size(); ++i) {
      comparisons.push_back(compare_runs(runs[i], references[i]));
    }
    return worst_of(comparisons);
  }

  // The device's runs, and its parts alone where that is cheap.
  void run_device(bool judge_parts) {
    auto runner = start_runner(in_.config, session_, *in_.weights, quiet());
    Runtime& runtime = runner->runtime();
    report_.placement = placement_of(runtime.plan());
    const std::string wanted = options_.choice("parts", {"auto", "always", "never"});
    const bool cheap = report_.reference != "cpu:reference" ||
                       step_flops(in_.config, runtime.plan(), runner->graphs()) < kCheapJudgeFlops;
    std::optional<PartComparer> comparer;
    if (judge_parts && wanted != "never" && (cheap || wanted == "always")) {
      comparer.emplace(runtime.plan(), runtime.device(), report_.reference,
                       device_precision(session_), std::nullopt, session_.threads);
    }
    StepClock clock;
    runtime.set_probe([&](const Runtime::PartCall& call) {
      clock.add(call);
      if (comparer) comparer->compare(call);
    });
    device_ = run_cases(*runner, in_);
    runtime.set_probe(nullptr);
    report_.step_seconds = clock.step_seconds(runner->graphs(), report_.layers);
    if (!comparer) return;
    report_.parts_judge = report_.reference;
    report_.parts = comparer->results();
  }

  void compare_with_fp32() {
    // In f32 the reference already is the f32 run.
    const bool rounds = session_.graphs.layer.numerics != Numerics::kFp32 &&
                        *session_.activation_dtype != DType::kF32;
    const DType weights = session_.graphs.layer.weight_dtype;
    if (!rounds && (weights == DType::kF32 || weights == in_.config.storage_dtype)) {
      report_.versus_fp32 = report_.versus_reference;
      return;
    }
    const std::vector<RunResult> fp32 =
        run_session(fp32_session(session_, in_.config), in_, quiet());
    report_.versus_fp32 = compare(device_, fp32);
    report_.reference_versus_fp32 = compare(reference_, fp32);
  }

  // Each group that has parts on the device moves to the host once.
  void blame() {
    const std::string wanted = options_.choice("blame", {"auto", "always", "never"});
    if (wanted == "never" || (wanted == "auto" && report_.pass())) return;
    std::vector<std::string> movable;
    for (const GroupPlacement& g : report_.placement) {
      if (g.host_parts < g.parts) movable.push_back(g.group);
    }
    const auto runner = start_runner(in_.config, session_, *in_.weights, quiet());
    const auto place = [&](const std::string& group, bool to_host) {
      if (auto error = runner->runtime().place_group(group, to_host, "blame")) {
        throw UserError(*error);
      }
    };
    const auto with_group_on_host = [&](const std::string& group) {
      log_info("check", "again with " + group + " on the host");
      place(group, true);
      const Comparison moved = compare(run_cases(*runner, in_), reference_);
      place(group, false);
      return moved;
    };
    report_.blame = blame_groups(movable, with_group_on_host, report_.limits);
  }

  const Options& options_;
  CheckInputs in_;
  SessionOptions session_;
  std::vector<RunResult> device_, reference_;
  CheckReport report_;
};

}  // namespace

int cmd_check(const Options& options) {
  if (options.has("serve-gap")) return check_serve_gap(options);
  if (options.flag("quiet") || options.flag("json")) set_log_level(LogLevel::kWarn);
  return Check(options).run();
}

}  // namespace npu
