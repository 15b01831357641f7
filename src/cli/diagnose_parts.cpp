// diagnose compare-parts and diagnose repro: single parts on real values.
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/check_inputs.h"
#include "cli/check_report.h"
#include "cli/diagnose.h"
#include "compile/worker.h"
#include "train/first_failing.h"
#include "train/part_compare.h"

namespace npu {
namespace {

std::string judge_name(const Options& options) {
  return options.has("reference") ? options.text("reference") : "cpu:reference";
}

// What the part reads in one step, computed on the CPU with the graphs cut as for the device: the
// device need not work for this.
std::vector<Tensor> capture_inputs(const CheckInputs& in, Prepared prepared, size_t distinct,
                                   bool quiet) {
  for (PlannedGraph& graph : prepared.plan.graphs) {
    for (PlannedPart& part : graph.parts) {
      part.on_host = true;
      part.host_reason = "capture";
    }
  }
  prepared.backend = make_backend("cpu").take();
  const Graph part = prepared.plan.distinct[distinct].graph;
  auto runner = load(in.config, std::move(prepared), *in.weights);
  Runtime& runtime = runner->runtime();
  std::vector<Tensor> inputs;
  runtime.set_probe([&](const Runtime::PartCall& call) {
    if (call.graph.parts[call.part].distinct != distinct || !inputs.empty()) return;
    for (size_t i = 0; i < part.inputs().size(); ++i) {
      const TensorType& type = part.node(part.inputs()[i]).type;
      inputs.push_back(buffer_tensor(runtime.device(), *call.inputs[i], type).clone());
    }
  });
  if (!quiet) log_info("diagnose", "one step on the CPU for the part's inputs");
  run_cases(*runner, in);
  return inputs;
}

Result<std::vector<Tensor>> run_compiled(Backend& backend, const Blob& blob, const Graph& part,
                                         std::span<const Tensor> inputs, int threads) {
  auto device = backend.open({.threads = threads});
  if (!device) return device.error();
  auto executable = device.value()->load(blob, part);
  if (!executable) return executable.error();
  return run_part(*device.value(), *executable.value(), part, inputs);
}

// What the graph's canonical names stand for where the part is first used.
std::string names_table(const Plan& plan, size_t distinct) {
  for (const PlannedGraph& graph : plan.graphs) {
    for (const PlannedPart& use : graph.parts) {
      if (use.distinct != distinct) continue;
      std::string text = "Names in `" + graph.name + "`: ";
      for (size_t i = 0; i < use.input_names.size(); ++i) {
        text += "i" + std::to_string(i) + " = " + use.input_names[i] + ", ";
      }
      for (size_t i = 0; i < use.output_names.size(); ++i) {
        text += (i > 0 ? ", o" : "o") + std::to_string(i) + " = " + use.output_names[i];
      }
      return text + ".\n\n";
    }
  }
  return "";
}

std::map<std::string, Tensor> named_inputs(const Graph& part, std::span<const Tensor> values) {
  std::map<std::string, Tensor> named;
  for (size_t i = 0; i < values.size(); ++i) named[part.node(part.inputs()[i]).name] = values[i];
  return named;
}

std::map<std::string, Tensor> named_outputs(const Graph& part, std::span<const Tensor> values) {
  std::map<std::string, Tensor> named;
  for (size_t i = 0; i < values.size(); ++i) named[part.outputs()[i].name] = values[i];
  return named;
}

// How the device fared with one part.
struct Observed {
  std::string status;  // "ran", "rejected: …", "device lost …"
  bool ran = false;
  std::vector<Tensor> outputs;
};

Observed observe(Backend& backend, const SessionOptions& session, const Graph& part,
                 std::span<const Tensor> inputs) {
  TrialCompiler compiler(backend, session.plan.compile, session.compile);
  const CompileOutcome compiled = compiler.build(part);
  if (!compiled.built()) {
    return {std::string(outcome_name(compiled.kind)) + ": " + compiled.reason, false, {}};
  }
  auto outputs = run_compiled(backend, compiled.blob, part, inputs, session.threads);
  if (!outputs) return {outputs.error().text(), false, {}};
  return {"ran", true, std::move(outputs.value())};
}

// Adds what the device did to the facts, with its errors against the reference.
bool describe(const Graph& part, const Observed& observed, std::span<const Tensor> expected,
              DType precision, const std::optional<double>& max_error, VendorCase& content) {
  content.facts.emplace_back("device", observed.status);
  if (!observed.ran) {
    content.title += " fails";
    return false;
  }
  PartVerdict worst = PartVerdict::kPass;
  content.details +=
      "| output | type | max abs error | relative error | bias | NaN | inf | verdict |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (size_t i = 0; i < expected.size(); ++i) {
    const OutputError e = output_error(observed.outputs[i], expected[i], precision);
    const double limit = max_error.value_or(part_error_limit(e.dtype, precision));
    const PartVerdict verdict = verdict_of(e, limit);
    if (verdict != PartVerdict::kPass && worst == PartVerdict::kPass) worst = verdict;
    const TensorType type{expected[i].dtype(), expected[i].shape()};
    content.details += "| " + part.outputs()[i].name + " | " + type.text() + " | " +
                       number_text("%.3g", e.max_abs) + " | " + number_text("%.3g", e.rel) + " | " +
                       number_text("%+.2f", e.bias) + " | " + std::to_string(e.nan) + " | " +
                       std::to_string(e.inf) + " | " + std::string(verdict_text(verdict)) + " |\n";
  }
  content.title += worst == PartVerdict::kPass ? " agrees with the reference"
                                               : " differs: " + std::string(verdict_text(worst));
  return worst == PartVerdict::kPass;
}

}  // namespace

int diagnose_compare_parts(const Options& options) {
  const CheckInputs in = read_check_inputs(options, options.integer("batch", 1, 4096));
  SessionOptions session = check_session(options, in);
  resolve_placement(in.config, session, *in.weights);
  const std::string judge = judge_name(options);
  std::optional<double> max_error;
  if (options.has("max-error")) max_error = options.real("max-error");

  auto runner = start_runner(in.config, session, *in.weights, options.flag("quiet"));
  Runtime& runtime = runner->runtime();
  PartComparer comparer(runtime.plan(), runtime.device(), judge, device_precision(session),
                        max_error, session.threads);
  runtime.set_probe([&comparer](const Runtime::PartCall& call) { comparer.compare(call); });
  run_cases(*runner, in);
  const std::vector<PartError> parts = comparer.results();
  std::vector<std::string> failed;
  for (const PartError& part : parts) {
    if (part.verdict != PartVerdict::kPass) failed.push_back(part.part);
  }
  const std::vector<GroupPlacement> placement = placement_of(runtime.plan());
  // A comparison of nothing is no pass.
  const bool pass = failed.empty() && !parts.empty();
  if (options.flag("json")) {
    const Json json = {{"pass", pass},
                       {"backend", session.backend},
                       {"judge", judge},
                       {"failed", failed},
                       {"placement", placement_json(placement)},
                       {"parts", part_errors_json(parts)}};
    std::cout << json.dump(2) << "\n";
  } else {
    print_placement(std::cout, placement);
    std::cout << session.backend << " parts alone, against " << judge << " on the same inputs, "
              << in.config.num_hidden_layers << " layers\n";
    print_part_errors(std::cout, parts, static_cast<size_t>(options.integer("top", 1)));
    if (parts.empty()) {
      std::cout << "FAIL: no part ran on the device\n";
    } else if (failed.empty()) {
      std::cout << "pass\n";
    }
    for (const PartError& part : parts) {
      if (part.verdict == PartVerdict::kPass) continue;
      std::cout << "FAIL: " << part.part << ": " << part.worst().name << ": "
                << verdict_text(part.verdict) << " (relative error "
                << number_text("%.3g", part.worst().rel) << ", limit "
                << number_text("%.3g", part.limit) << ", bias "
                << number_text("%+.2f", part.worst().bias) << ")\n";
    }
  }
  return pass ? 0 : static_cast<int>(ErrorKind::kCheckFailed);
}

int diagnose_repro(const Options& options, const std::string& name) {
  const fs::path out = options.text("out");
  check_case_directory(options, out);
  const CheckInputs in = read_check_inputs(options, options.integer("batch", 1, 4096));
  SessionOptions session = check_session(options, in);
  if (!options.has("host-parts")) session.host_groups.emplace();
  resolve_placement(in.config, session, *in.weights);
  Prepared prepared = prepare(in.config, session);
  if (name.find('/') != std::string::npos) recall(prepared);  // a piece of a part that was cut
  const size_t distinct = find_part(prepared.plan, name);
  const Graph part = prepared.plan.distinct[distinct].graph;
  const auto backend = make_backend(session.backend).take();

  VendorCase content;
  content.graph = part;
  content.title = name + " on " + session.backend;
  content.facts = version_facts(*backend);
  content.facts.emplace_back("part", name + ", of " + options.text("model"));
  content.details = names_table(prepared.plan, distinct);
  content.facts.emplace_back("found by", command_line(options, "diagnose"));

  const SessionOptions filled_in = prepared.options;
  const std::vector<Tensor> inputs =
      capture_inputs(in, std::move(prepared), distinct, options.flag("quiet"));
  if (inputs.empty()) {
    fail(ErrorKind::kUsage, "diagnose repro", "a step of this model does not call the part",
         "'" + name + "' with " + std::to_string(in.config.num_hidden_layers) + " layers",
         "take more --layers, or another part");
  }
  const auto reference = make_backend(judge_name(options)).take();
  const std::vector<Tensor> expected =
      run_compiled(*reference, reference->compile(part, {}).take(), part, inputs, session.threads)
          .take();
  content.tensors["inputs.safetensors"] = named_inputs(part, inputs);
  content.tensors["expected.safetensors"] = named_outputs(part, expected);
  // Written before the device is touched: some loaders take the process down with them.
  write_case(out, content);

  const Observed observed = observe(*backend, filled_in, part, inputs);
  std::optional<double> max_error;
  if (options.has("max-error")) max_error = options.real("max-error");
  const bool pass =
      describe(part, observed, expected, backend->traits().precision, max_error, content);
  if (observed.ran) {
    content.tensors["observed.safetensors"] = named_outputs(part, observed.outputs);
  }
  write_case(out, content);
  if (options.flag("json")) {
    std::cout << Json{{"pass", pass},
                      {"part", name},
                      {"device", observed.status},
                      {"title", content.title},
                      {"out", out.string()}}
                     .dump(2)
              << "\n";
  } else {
    std::cout << content.title << "\nwritten to " << out.string() << "\n";
  }
  return pass ? 0 : static_cast<int>(ErrorKind::kCheckFailed);
}

}  // namespace npu
