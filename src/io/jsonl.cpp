// See jsonl.h.
#include "io/jsonl.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/hash.h"

namespace npu {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

std::string hex_byte(char byte) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto value = static_cast<unsigned char>(byte);
  return {'0', 'x', kDigits[value >> 4], kDigits[value & 15]};
}

Result<Json> parse_row(std::string_view line, const std::string& where) {
  size_t offset = 0;
  if (!valid_utf8(line, &offset))
    return Error{
        ErrorKind::kBadInput, where, "not valid UTF-8",
        "byte " + hex_byte(line[offset]) + " at byte " + std::to_string(offset) + " of the line",
        "save the file as UTF-8"};
  Result<Json> row = parse_json(line, where);
  if (!row) {
    Error error = row.error();
    error.where = where;  // the line within the file, not within the row
    error.hint = "one JSON object a line (JSON lines), not one list over many lines";
    return error;
  }
  if (!row.value().is_object())
    return Error{ErrorKind::kBadInput, where, "a row must be a JSON object", json_kind(row.value()),
                 "write {\"prompt\": …, \"response\": …}"};
  return row;
}

}  // namespace

JsonlSummary read_jsonl(const std::vector<fs::path>& files, int64_t skip_bad_rows,
                        const RowVisit& visit) {
  JsonlSummary summary;
  Sha256 digest;
  for (const fs::path& path : files) {
    const auto file = FileBytes::open(path);
    digest.update(file->bytes());
    std::string_view rest(reinterpret_cast<const char*>(file->bytes().data()),
                          file->bytes().size());
    if (rest.starts_with(kByteOrderMark)) rest.remove_prefix(kByteOrderMark.size());
    bool any = false;
    for (int64_t number = 1; !rest.empty(); ++number) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view line = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      any = true;
      const std::string where = path.string() + ":" + std::to_string(number);
      const Result<Json> row = parse_row(line, where);
      const std::optional<Error> error =
          row ? visit(row.value(), where) : std::optional<Error>(row.error());
      if (!error) {
        ++summary.rows;
        continue;
      }
      if (++summary.bad > skip_bad_rows) throw UserError(*error);
      if (summary.first_bad.empty()) summary.first_bad = error->text();
    }
    if (!any)
      fail_input(path.string(), "the file has no rows",
                 std::to_string(file->bytes().size()) + " bytes", "one JSON object a line");
  }
  summary.sha256 = digest.hex();
  return summary;
}

std::string json_kind(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::boolean:
      return "true or false";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::array:
      return "a list";
    case Json::value_t::object:
      return "an object";
    default:
      return "a number";
  }
}

Result<std::string> string_field(const Json& row, const std::string& key,
                                 const std::string& where) {
  const auto found = row.find(key);
  NPU_CHECK(found != row.end(), key);
  if (!found->is_string())
    return Error{ErrorKind::kBadInput, where, "\"" + key + "\" must be a string", json_kind(*found),
                 ""};
  return found->get<std::string>();
}

}  // namespace npu
