// See eval_rows.h.
#include "io/eval_rows.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "io/jsonl.h"

namespace npu {
namespace {

Result<EvalRow> read_row(const Json& row, const std::string& where) {
  const std::string answer = row.contains("response") ? "response" : "completion";
  for (const std::string& key : {std::string("prompt"), answer})
    if (!row.contains(key))
      return Error{ErrorKind::kBadInput, where, "the row has no \"" + key + "\"", "",
                   R"(evaluation rows are {"prompt","response"})"};
  Result<std::string> prompt = string_field(row, "prompt", where);
  if (!prompt) return prompt.error();
  Result<std::string> response = string_field(row, answer, where);
  if (!response) return response.error();
  if (response.value().empty())
    return Error{ErrorKind::kBadInput, where, "\"" + answer + "\" is empty", "", ""};
  return EvalRow{std::move(prompt.value()), std::move(response.value()), where};
}

}  // namespace

std::vector<EvalRow> load_eval_rows(const std::vector<fs::path>& files, int64_t skip_bad_rows) {
  std::vector<EvalRow> rows;
  const auto visit = [&](const Json& json, const std::string& where) -> std::optional<Error> {
    Result<EvalRow> row = read_row(json, where);
    if (!row) return row.error();
    rows.push_back(std::move(row.value()));
    return std::nullopt;
  };
  const JsonlSummary summary = read_jsonl(files, skip_bad_rows, visit);
  if (summary.bad > 0) {
    log_warn("data", std::to_string(summary.bad) + " bad rows skipped, first " + summary.first_bad);
  }
  return rows;
}

}  // namespace npu
