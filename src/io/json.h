// JSON as untrusted input: bounded size and depth, duplicate keys refused, errors with line
// numbers. The library is nlohmann/json; only this header's users include it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace npu {

using Json = nlohmann::ordered_json;

struct JsonLimits {
  size_t max_bytes = size_t{256} << 20;
  int max_depth = 64;
};
// Errors: "WHERE:LINE: what; got …". `where` is a file name or what the text is.
Result<Json> parse_json(std::string_view text, std::string_view where, JsonLimits limits = {});
Json read_json_file(const fs::path& path, JsonLimits limits = {});  // throws UserError

// True for well-formed UTF-8 without surrogates; else *bad_offset is where it breaks.
bool valid_utf8(std::string_view text, size_t* bad_offset = nullptr);

}  // namespace npu
