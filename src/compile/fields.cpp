// Packing and unpacking of length-prefixed fields; unpacking takes hostile bytes.
#include "compile/fields.h"

#include <cstddef>
#include <cstdint>

namespace npu {
namespace {

constexpr size_t kLengthBytes = 8;

}  // namespace

void append_field(std::string& bytes, std::string_view field) {
  for (size_t i = 0; i < kLengthBytes; ++i) {
    bytes += static_cast<char>((field.size() >> (8 * i)) & 0xff);
  }
  bytes += field;
}

std::string pack_fields(const std::vector<std::string>& fields) {
  std::string bytes;
  for (const std::string& field : fields) append_field(bytes, field);
  return bytes;
}

std::optional<std::vector<std::string_view>> unpack_fields(std::string_view bytes) {
  std::vector<std::string_view> fields;
  while (!bytes.empty()) {
    if (bytes.size() < kLengthBytes) return std::nullopt;
    uint64_t length = 0;
    for (size_t i = 0; i < kLengthBytes; ++i) {
      length |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    }
    bytes.remove_prefix(kLengthBytes);
    if (length > bytes.size()) return std::nullopt;
    fields.push_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  return fields;
}

}  // namespace npu
