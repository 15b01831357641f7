// The compile cache: content-addressed blobs under an explainable key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/file.h"

namespace npu {

// An ordered list of (label, value): "part", "backend", "compiler", "traits", "threads" and one
// label per vendor option; "use" comes first where the entry is not for running. The digest is the
// SHA-256 over all of them; a miss is explained by the labels whose values differ from the nearest
// entry's.
class CacheKey {
 public:
  // Stores the value's hash, and itself where it is one line of at most so many bytes.
  void add(std::string label, std::string_view value, size_t shown_limit = 80);
  struct Item {
    std::string label, sha256, shown;  // shown: the value itself or ""
  };
  const std::vector<Item>& items() const { return items_; }
  std::string digest() const;

 private:
  std::vector<Item> items_;
};

// Options under which a part was built: ordered (label, value) pairs. No part of the key, because a
// part that an option does not reach is the same part; only explanations read it. On disk at most
// kOriginLimit pairs of short printable texts.
using PartOrigin = std::vector<std::pair<std::string, std::string>>;
inline constexpr size_t kOriginLimit = 64;

// What compiling one part came to. Failures are kept too, so that nothing fails twice.
struct CompileOutcome {
  enum class Kind { kBuilt, kRejected, kCrashed, kTimedOut, kOutOfMemory };
  Kind kind = Kind::kRejected;
  Blob blob;           // kBuilt only
  std::string reason;  // not kBuilt: one line
  std::string log_tail;
  double seconds = 0;
  int64_t peak_memory_bytes = 0;
  // The limits it was compiled under, 0 = none: running into one says nothing about a wider one.
  double seconds_limit = 0;
  int64_t memory_limit_bytes = 0;
  bool from_cache = false;

  bool built() const { return kind == Kind::kBuilt; }
};
std::string_view outcome_name(CompileOutcome::Kind kind);

struct Manifest;  // compile/manifest.h

// Layout: DIR/parts/<digest>.json (manifest: key items, origin, outcome, sha256 and size of the
// blob) and DIR/parts/<digest>.blob. Both are published by rename; a blob whose digest does not
// match its manifest is dropped with a warning and counts as a miss. The directory is untrusted
// input.
class Cache {
 public:
  explicit Cache(fs::path directory);
  std::optional<CompileOutcome> get(const CacheKey& key) const;
  // Errors: a cache that can't be written is a UserError; the outcome itself is unharmed.
  // `group` is the part's first use, "layer_fwd.2".
  void put(const CacheKey& key, const CompileOutcome& outcome, std::string_view group,
           const PartOrigin& origin = {}) const;
  // "threads changed: 2 (was 1)" against the nearest entry of the same part text, the same group or
  // the same graph. Another part text is explained by the options that differ, "rank changed: 8
  // (was 16)", and is "part changed" when none does. "no entry for this part or any like it" when
  // there is no entry to compare with.
  std::string explain_miss(const CacheKey& key, std::string_view group,
                           const PartOrigin& origin = {}) const;
  // The versions of the compilers that made what is stored for a backend (Traits::code_name), the
  // one of the entry that was stored last first.
  std::vector<std::string> compilers_of(std::string_view backend) const;
  const fs::path& directory() const { return directory_; }

  // Bundles carry entries to another host. Entries that are absent are left out; returns how many
  // went in. `digests` are CacheKey::digest()s.
  size_t export_bundle(const std::vector<std::string>& digests, const fs::path& file) const;
  // Adds the entries of a bundle; returns how many. The file is untrusted: every entry is checked
  // before the first is stored. Errors name the file and the entry.
  size_t import_bundle(const fs::path& file) const;

 private:
  fs::path manifest_path(const std::string& digest) const;
  fs::path blob_path(const std::string& digest) const;
  std::vector<fs::path> manifests() const;  // in order of their names
  void publish_entry(const Manifest& manifest, std::string_view blob) const;

  fs::path directory_;
};

}  // namespace npu
