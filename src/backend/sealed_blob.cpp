// The header line of a blob, written and checked.
#include "backend/sealed_blob.h"

#include "base/hash.h"

namespace npu {
namespace {

constexpr size_t kDigestLength = 64;
constexpr const char* kHint = "clear the compile cache";

std::string header_start(std::string_view kind, const std::string& version) {
  return "npu-" + std::string(kind) + " " + version + " ";
}

}  // namespace

Blob seal_blob(std::string_view kind, const std::string& version, const std::string& content) {
  return header_start(kind, version) + sha256_hex(std::string_view(content)) + "\n" + content;
}

Result<std::string_view> unseal_blob(std::string_view kind, const std::string& version,
                                     const Blob& blob) {
  const std::string start = header_start(kind, version);
  const std::string where = std::string(kind) + " blob";
  const std::string_view bytes = blob;
  const size_t header = start.size() + kDigestLength + 1;
  if (!bytes.starts_with(start) || bytes.size() < header || bytes[header - 1] != '\n') {
    return Error{ErrorKind::kBadInput, where,
                 "must be made by " + std::string(kind) + " " + version, "", kHint};
  }
  const std::string_view content = bytes.substr(header);
  if (sha256_hex(content) != bytes.substr(start.size(), kDigestLength)) {
    return Error{ErrorKind::kBadInput, where, "is damaged", "", kHint};
  }
  return content;
}

}  // namespace npu
