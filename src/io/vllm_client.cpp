// Prompt log-probabilities of a vLLM endpoint. The form of requests and answers is that of vLLM's
// entrypoints/openai protocol.
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/http.h"
#include "io/json.h"
#include "io/serving.h"
#include "io/unicode.h"

namespace npu {
namespace {

constexpr size_t kShown = 300;  // of what a server says, without control characters

std::string base_url(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  if (!url.ends_with("/v1")) url += "/v1";
  return url;
}

// The server's own words: {"error":{"message"}}, the older {"message"}, {"detail"}, or plain text.
std::string server_message(const std::string& body) {
  const Result<Json> json = parse_json(body, "answer");
  const auto text = [](const Json& object, const char* key) -> std::string {
    if (!object.is_object() || !object.contains(key)) return "";
    return object[key].is_string() ? object[key].get<std::string>() : object[key].dump();
  };
  std::string message;
  if (json.ok()) {
    const Json& top = json.value();
    if (top.is_object() && top.contains("error")) message = text(top["error"], "message");
    if (message.empty()) message = text(top, "message");
    if (message.empty()) message = text(top, "detail");
  }
  if (message.empty()) message = body;
  return printable(message, kShown);
}

Json ask(const ServingEndpoint& endpoint, const std::string& path, const std::string& body) {
  HttpRequest request;
  request.url = base_url(endpoint.url) + path;
  request.body = body;
  request.seconds = endpoint.seconds;
  request.max_body_bytes = endpoint.max_body_bytes;
  if (!endpoint.api_key.empty()) {
    request.headers.push_back("Authorization: Bearer " + endpoint.api_key);
  }
  const HttpResponse response = send_http(request).take();
  if (response.status != 200) {
    fail(response.status >= 500 ? ErrorKind::kRetriable : ErrorKind::kBadInput, request.url,
         "the server answered with status " + std::to_string(response.status),
         server_message(response.body));
  }
  return parse_json(response.body, request.url, {.max_bytes = endpoint.max_body_bytes}).take();
}

std::string only_model(const ServingEndpoint& endpoint) {
  const Json models = ask(endpoint, "/models", "");
  std::string first, names;
  size_t count = 0;
  if (models.is_object() && models.contains("data") && models["data"].is_array()) {
    for (const Json& model : models["data"]) {
      if (!model.is_object() || !model.contains("id") || !model["id"].is_string()) continue;
      if (count++ == 0) first = model["id"].get<std::string>();
      names += (count == 1 ? "" : ", ") + model["id"].get<std::string>();
    }
  }
  if (count == 1) return first;
  fail(ErrorKind::kUsage, "--serve-model", "is needed",
       count == 0 ? "the server lists no model" : "the server lists " + printable(names, kShown));
}

// prompt_logprobs is a list as long as the prompt: null for the first token, then objects with the
// token's own id, and perhaps likelier ones, as keys.
std::vector<double> read_log_probs(const Json& answer, const std::vector<int32_t>& prompt,
                                   const std::string& where) {
  const auto broken = [&](const std::string& what, const std::string& got = "") {
    fail_input(where, what, got, "is it a vLLM server that allows prompt_logprobs?");
  };
  if (!answer.is_object() || !answer.contains("choices") || !answer["choices"].is_array() ||
      answer["choices"].empty() || !answer["choices"][0].is_object()) {
    broken("the answer has no choices");
  }
  const Json& choice = answer["choices"][0];
  if (!choice.contains("prompt_logprobs") || !choice["prompt_logprobs"].is_array()) {
    broken("the answer has no prompt_logprobs");
  }
  const Json& list = choice["prompt_logprobs"];
  if (list.size() != prompt.size()) {
    broken("prompt_logprobs has another length than the prompt",
           std::to_string(list.size()) + " for " + std::to_string(prompt.size()) + " tokens");
  }
  std::vector<double> out;
  for (size_t i = 1; i < prompt.size(); ++i) {
    const std::string token = std::to_string(prompt[i]);
    const std::string place = "token " + std::to_string(i) + " (id " + token + ")";
    if (!list[i].is_object() || !list[i].contains(token)) {
      broken("no log-probability of " + place, printable(list[i].dump(), 100));
    }
    const Json& entry = list[i][token];
    const Json& value = entry.is_object() && entry.contains("logprob") ? entry["logprob"] : entry;
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() > 1e-3) {
      broken("the log-probability of " + place + " is not a number of at most 0",
             printable(value.dump(), 100));
    }
    out.push_back(value.get<double>());
  }
  return out;
}

}  // namespace

ServedLogProbs vllm_log_probs(const ServingEndpoint& endpoint, const Prompts& prompts) {
  const std::string model = endpoint.model.empty() ? only_model(endpoint) : endpoint.model;
  ServedLogProbs out;
  out.engine = "vllm model " + printable(model, kShown);
  for (const std::vector<int32_t>& prompt : prompts) {
    // temperature: the server's default may come from the model's generation_config.json. Of a
    // prompt's logprobs only the token's own is needed, but some versions take 0 for "none".
    const Json request = {{"model", model},
                          {"prompt", prompt},
                          {"max_tokens", 1},
                          {"temperature", 0.0},
                          {"prompt_logprobs", 1}};
    out.log_probs.push_back(
        read_log_probs(ask(endpoint, "/completions", request.dump()), prompt, endpoint.url));
  }
  return out;
}

}  // namespace npu
