// Entries on disk. Nothing read from the directory is believed before it is checked.
#include "compile/cache.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include "base/hash.h"
#include "base/log.h"
#include "compile/manifest.h"

namespace npu {
namespace {

Result<Manifest> read_manifest(const fs::path& path) {
  try {
    return parse_manifest(read_text(path, kManifestLimit), path.string());
  } catch (const UserError& e) {
    return e.error();
  }
}

// The blob if it is the one that the manifest describes.
Result<Blob> read_blob(const fs::path& path, const Manifest& manifest) {
  try {
    const auto file = FileBytes::open(path);
    // Copied before it is checked, so that what was checked is what is used.
    Blob blob(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
    if (auto error = check_blob(manifest, blob, path.string())) return std::move(*error);
    return blob;
  } catch (const UserError& e) {
    return e.error();
  }
}

bool same_items(const std::vector<CacheKey::Item>& a, const std::vector<CacheKey::Item>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const CacheKey::Item& x, const CacheKey::Item& y) {
                      return x.label == y.label && x.sha256 == y.sha256;
                    });
}

const CacheKey::Item* find_item(const std::vector<CacheKey::Item>& items, std::string_view label) {
  const auto found =
      std::find_if(items.begin(), items.end(), [&](const auto& i) { return i.label == label; });
  return found == items.end() ? nullptr : &*found;
}

// "threads changed: 2 (was 1)" for each label whose value is not the same in both.
std::vector<std::string> differences(const std::vector<CacheKey::Item>& now,
                                     const std::vector<CacheKey::Item>& before) {
  std::vector<std::string> lines;
  for (const CacheKey::Item& item : now) {
    const CacheKey::Item* old = find_item(before, item.label);
    if (old == nullptr) {
      lines.push_back(item.label + " added: " + item.shown);
    } else if (old->sha256 != item.sha256) {
      const bool shown = !item.shown.empty() && !old->shown.empty();
      lines.push_back(item.label + " changed" +
                      (shown ? ": " + item.shown + " (was " + old->shown + ")" : ""));
    }
  }
  for (const CacheKey::Item& old : before) {
    if (find_item(now, old.label) == nullptr) {
      lines.push_back(old.label + " removed" +
                      (old.shown.empty() ? "" : " (was " + old.shown + ")"));
    }
  }
  return lines;
}

// The same for the options that both name: an entry of another version may not know them all.
std::vector<std::string> differences(const PartOrigin& now, const PartOrigin& before) {
  std::vector<std::string> lines;
  for (const auto& [label, value] : now) {
    const auto old =
        std::find_if(before.begin(), before.end(),
                     [&, &wanted = label](const auto& o) { return o.first == wanted; });
    if (old != before.end() && old->second != value) {
      lines.push_back(label + " changed: " + value + " (was " + old->second + ")");
    }
  }
  return lines;
}

std::string_view graph_of(std::string_view group) { return group.substr(0, group.rfind('.')); }

// How an entry differs from what was looked for, and how far that is: lower is nearer.
struct Neighbour {
  std::vector<std::string> lines;
  // Key labels that differ; whether there are other labels ("changed" says more than "added");
  // another part; another place in the graph; options that differ.
  std::array<size_t, 5> distance;
};

Neighbour compare(const CacheKey& key, std::string_view group, const PartOrigin& origin,
                  const Manifest& entry, bool same_part) {
  Neighbour out;
  out.lines = differences(key.items(), entry.items);
  out.distance = {out.lines.size(), entry.items.size() != key.items().size(), !same_part,
                  entry.group != group, 0};
  if (same_part) return out;
  const std::vector<std::string> options = differences(origin, entry.origin);
  out.distance.back() = options.size();
  if (options.empty()) return out;
  std::erase_if(out.lines,
                [](const std::string& line) { return line.starts_with("part changed"); });
  out.lines.insert(out.lines.begin(), options.begin(), options.end());
  return out;
}

}  // namespace

void CacheKey::add(std::string label, std::string_view value, size_t shown_limit) {
  NPU_CHECK(find_item(items_, label) == nullptr, "key label " + label + " added twice");
  const bool short_line =
      value.size() <= shown_limit &&
      std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c != '\x7f'; });
  items_.push_back({std::move(label), sha256_hex(value), short_line ? std::string(value) : ""});
}

std::string CacheKey::digest() const { return key_digest(items_); }

Cache::Cache(fs::path directory) : directory_(std::move(directory)) {}

fs::path Cache::manifest_path(const std::string& digest) const {
  return directory_ / "parts" / (digest + ".json");
}

fs::path Cache::blob_path(const std::string& digest) const {
  return directory_ / "parts" / (digest + ".blob");
}

std::optional<CompileOutcome> Cache::get(const CacheKey& key) const {
  const std::string digest = key.digest();
  const fs::path path = manifest_path(digest);
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;

  const auto drop = [&](const Error& reason) {
    log_warn("cache", "entry dropped: " + reason.text());
    fs::remove(path, error);  // in a read-only cache it stays, and is dropped again next time
    fs::remove(blob_path(digest), error);
    return std::nullopt;
  };
  Result<Manifest> manifest = read_manifest(path);
  if (!manifest) return drop(manifest.error());
  if (!same_items(manifest.value().items, key.items())) {
    return drop({ErrorKind::kBadInput, path.string(), "manifest belongs to another key", "", ""});
  }
  CompileOutcome outcome = std::move(manifest.value().outcome);
  if (outcome.built()) {
    Result<Blob> blob = read_blob(blob_path(digest), manifest.value());
    if (!blob) return drop(blob.error());
    outcome.blob = std::move(blob.value());
  }
  outcome.from_cache = true;
  return outcome;
}

void Cache::put(const CacheKey& key, const CompileOutcome& outcome, std::string_view group,
                const PartOrigin& origin) const {
  Manifest manifest;
  manifest.items = key.items();
  manifest.group = std::string(group);
  manifest.origin = origin;
  manifest.outcome = outcome;
  if (outcome.built()) {
    manifest.blob_sha256 = sha256_hex(outcome.blob);
    manifest.blob_bytes = outcome.blob.size();
  }
  publish_entry(manifest, outcome.blob);
}

void Cache::publish_entry(const Manifest& manifest, std::string_view blob) const {
  std::error_code error;
  fs::create_directories(directory_ / "parts", error);
  if (error) {
    fail(errno_kind(error.value()), directory_.string(), "cache can't be created", error.message(),
         "choose another --cache-dir");
  }
  const std::string digest = key_digest(manifest.items);
  if (manifest.outcome.built()) publish_text(blob_path(digest), blob);
  publish_text(manifest_path(digest), print_manifest(manifest));  // last: it makes the entry
}

std::vector<fs::path> Cache::manifests() const {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator it(directory_ / "parts", error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".json") paths.push_back(it->path());
  }
  std::sort(paths.begin(), paths.end());  // equal caches give equal explanations
  return paths;
}

std::vector<std::string> Cache::compilers_of(std::string_view backend) const {
  std::map<std::string, fs::file_time_type> newest;
  for (const fs::path& path : manifests()) {
    const Result<Manifest> manifest = read_manifest(path);
    if (!manifest) continue;
    const CacheKey::Item* const made_for = find_item(manifest.value().items, "backend");
    const CacheKey::Item* const compiler = find_item(manifest.value().items, "compiler");
    if (made_for == nullptr || compiler == nullptr || made_for->sha256 != sha256_hex(backend) ||
        compiler->shown.empty() || compiler->sha256 != sha256_hex(compiler->shown)) {
      continue;
    }
    std::error_code error;
    const fs::file_time_type stored = fs::last_write_time(path, error);
    if (error) continue;
    const auto [at, added] = newest.emplace(compiler->shown, stored);
    at->second = std::max(at->second, stored);
  }
  std::vector<std::string> compilers;
  for (const auto& [compiler, stored] : newest) compilers.push_back(compiler);
  std::sort(compilers.begin(), compilers.end(), [&](const std::string& a, const std::string& b) {
    return newest.at(a) > newest.at(b);
  });
  return compilers;
}

std::string Cache::explain_miss(const CacheKey& key, std::string_view group,
                                const PartOrigin& origin) const {
  std::optional<Neighbour> nearest;
  const CacheKey::Item* part = find_item(key.items(), "part");
  for (const fs::path& path : manifests()) {
    const Result<Manifest> manifest = read_manifest(path);
    if (!manifest) continue;  // get() warns about it when its turn comes
    if (find_item(manifest.value().items, "use") != nullptr) continue;  // no part of a run
    const CacheKey::Item* other = find_item(manifest.value().items, "part");
    const bool same_part = part && other && part->sha256 == other->sha256;
    if (!same_part && graph_of(manifest.value().group) != graph_of(group)) continue;
    Neighbour neighbour = compare(key, group, origin, manifest.value(), same_part);
    if (!nearest || neighbour.distance < nearest->distance) nearest = std::move(neighbour);
  }
  if (!nearest) return "no entry for this part or any like it";
  if (nearest->lines.empty()) return "the entry for it can't be used";
  std::string text;
  for (const std::string& line : nearest->lines) text += (text.empty() ? "" : "; ") + line;
  return text;
}

}  // namespace npu
