// Log-probabilities from an engine that serves the model: an OpenAI-compatible vLLM endpoint, or
// transformers in a Python child.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace npu {

using Prompts = std::vector<std::vector<int32_t>>;  // token ids, at least two each

struct ServedLogProbs {
  std::string engine;  // "transformers 5.24.0", "vllm model NAME"
  // For each prompt log p(token i + 1 | tokens 0..i), one fewer than it has tokens.
  std::vector<std::vector<double>> log_probs;
};

struct ServingEndpoint {
  std::string url;       // "http://host:port", with or without "/v1"
  std::string model;     // name of the served model or adapter; "": the only one that is listed
  std::string api_key;   // "" for none
  double seconds = 600;  // a request
  size_t max_body_bytes = size_t{256} << 20;
};
// POST /v1/completions with token ids and prompt_logprobs, a prompt at a time. UserErrors: the
// connection's (io/http.h); a status of 500 and above is kRetriable, another that is not 200
// kBadInput, both with the server's message; an answer of another form or length, or with a
// log-probability that is missing or no number, is kBadInput.
ServedLogProbs vllm_log_probs(const ServingEndpoint& endpoint, const Prompts& prompts);

struct TransformersWorker {
  std::string python;  // interpreter
  fs::path model, adapter;
  double seconds = 1800;  // for loading and all prompts
};
// Runs workers/transformers_log_probs.py, which this program carries, in bf16. UserErrors: the
// interpreter or a package is missing (kBadInput, with what to install); how else the child ended,
// with the tail of its messages (kRetriable when it was killed or out of time).
ServedLogProbs transformers_log_probs(const TransformersWorker& worker, const Prompts& prompts);

std::string_view transformers_worker_script();  // made from workers/ at build time

}  // namespace npu
