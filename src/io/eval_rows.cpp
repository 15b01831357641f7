// See eval_rows.h.
#include "io/eval_rows.h"

#include <nlohmann/json.hpp>

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
  EvalRow result{std::move(prompt.value()), std::move(response.value()), std::nullopt, where};
  const auto label = row.find("label");
  if (label != row.end() && !label->is_null()) {
    if (!label->is_number_integer())
      return Error{ErrorKind::kBadInput, where, "\"label\" must be a whole number",
                   json_kind(*label), ""};
    result.label = label->get<int64_t>();
  }
  return result;
}

}  // namespace

std::vector<EvalRow> load_eval_rows(const std::vector<fs::path>& files) {
  std::vector<EvalRow> rows;
  read_jsonl(files, 0, [&](const Json& json, const std::string& where) -> std::optional<Error> {
    Result<EvalRow> row = read_row(json, where);
    if (!row) return row.error();
    rows.push_back(std::move(row.value()));
    return std::nullopt;
  });
  return rows;
}

}  // namespace npu
