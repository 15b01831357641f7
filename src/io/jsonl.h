// Reading JSON-lines files as a user's file: every problem has a file, a line and a hint, and a set
// number of bad rows can be passed over.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "io/json.h"

namespace npu {

struct JsonlSummary {
  int64_t rows = 0;       // rows that were good
  int64_t bad = 0;        // rows passed over
  std::string first_bad;  // the message of the first of them
  std::string sha256;     // of the files' bytes, one after the other
};

// Calls visit(row, "file:line") for each row, which is a JSON object; it returns what is wrong with
// the row, if anything. Blank lines are no rows; CRLF and a byte-order mark at the start are
// accepted. The bad row after `skip_bad_rows` of them is thrown as a UserError, as is a file
// without rows.
using RowVisit = std::function<std::optional<Error>(const Json& row, const std::string& where)>;
JsonlSummary read_jsonl(const std::vector<fs::path>& files, int64_t skip_bad_rows,
                        const RowVisit& visit);

// "a string", "a list", … for messages.
std::string json_kind(const Json& value);
// The string under `key`, or what is wrong with it.
Result<std::string> string_field(const Json& row, const std::string& key, const std::string& where);

}  // namespace npu
