// What a cache entry says beside its blob: the key, the outcome and the blob's digest.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compile/cache.h"

namespace npu {

struct Manifest {
  std::vector<CacheKey::Item> items;
  PartOrigin origin;
  std::string group, blob_sha256;
  size_t blob_bytes = 0;
  CompileOutcome outcome;  // without its blob
};

inline constexpr size_t kManifestLimit = size_t{1} << 20;  // bytes of text

std::string print_manifest(const Manifest& manifest);
// The manifest, or what is wrong with it; `where` names the text in errors.
Result<Manifest> parse_manifest(std::string_view text, const std::string& where);
// Why `blob` is not the one that the manifest describes. An outcome without a blob has size 0.
std::optional<Error> check_blob(const Manifest& manifest, std::string_view blob,
                                const std::string& where);
// The name of the entry of a key: SHA-256 over labels and values' digests.
std::string key_digest(const std::vector<CacheKey::Item>& items);

}  // namespace npu
