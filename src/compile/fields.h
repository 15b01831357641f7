// Lists of byte strings as one: the form of messages to compile children and of bundles.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace npu {

// Each field is preceded by its length as 8 bytes, low byte first.
void append_field(std::string& bytes, std::string_view field);
std::string pack_fields(const std::vector<std::string>& fields);
// The fields as windows into `bytes`; nothing when `bytes` is not exactly such a list.
std::optional<std::vector<std::string_view>> unpack_fields(std::string_view bytes);

}  // namespace npu
