// transformers in a Python child: the request on stdin, log-probabilities on stdout.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/process.h"
#include "io/json.h"
#include "io/serving.h"

namespace npu {
namespace {

constexpr int kMissingPackage = 3;  // as the script exits

std::string last_lines(const std::string& text) {
  constexpr size_t kLongest = 600;
  std::string tail = text.size() > kLongest ? "…" + text.substr(text.size() - kLongest) : text;
  while (!tail.empty() && tail.back() == '\n') tail.pop_back();
  return tail;
}

void refuse_failed_child(const TransformersWorker& worker, const ChildResult& child) {
  if (child.ok()) return;
  if (child.end == ChildResult::End::kNotStarted || child.exit_code == 127) {
    fail_input(worker.python, "the Python interpreter does not start", child.describe(),
               "set NPU_LORA_PYTHON to one that has torch, transformers and peft");
  }
  if (child.end == ChildResult::End::kExited && child.exit_code == kMissingPackage) {
    fail_input(worker.python, last_lines(child.err_tail), "",
               "install torch, transformers and peft there, or set NPU_LORA_PYTHON to an "
               "interpreter that has them");
  }
  fail(child.end == ChildResult::End::kExited ? ErrorKind::kBadInput : ErrorKind::kRetriable,
       "transformers", "the worker " + child.describe(), last_lines(child.err_tail));
}

std::vector<double> read_row(const Json& row, size_t expected) {
  if (!row.is_array() || row.size() != expected) {
    fail_input("transformers", "the worker's answer has another length than the prompt");
  }
  std::vector<double> out;
  for (const Json& value : row) {
    if (!value.is_number()) {
      fail_input("transformers", "a log-probability is not a number", value.dump(),
                 "the model's output is not finite in bf16");
    }
    out.push_back(value.get<double>());
  }
  return out;
}

}  // namespace

ServedLogProbs transformers_log_probs(const TransformersWorker& worker, const Prompts& prompts) {
  Json request = {{"model", worker.model.string()}, {"dtype", "bfloat16"}, {"prompts", prompts}};
  request["adapter"] = worker.adapter.empty() ? Json(nullptr) : Json(worker.adapter.string());
  ChildOptions options;
  options.limits.seconds = worker.seconds;
  options.input = request.dump();
  const ChildResult child =
      run_child({worker.python, "-c", std::string(transformers_worker_script())}, options);
  refuse_failed_child(worker, child);
  const Json answer = parse_json(child.out, "transformers worker").take();
  ServedLogProbs out;
  if (!answer.is_object() || !answer.contains("log_probs") ||
      answer["log_probs"].size() != prompts.size()) {
    fail_input("transformers", "the worker answered for another number of prompts");
  }
  const auto engine = answer.find("engine");
  out.engine =
      engine != answer.end() && engine->is_string() ? engine->get<std::string>() : "transformers";
  for (size_t i = 0; i < prompts.size(); ++i) {
    out.log_probs.push_back(read_row(answer["log_probs"][i], prompts[i].size() - 1));
  }
  return out;
}

}  // namespace npu
