// Keys, manifests and blobs. Nothing read from the directory is believed before it is checked.
#include "compile/cache.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "base/hash.h"
#include "base/log.h"

namespace npu {
namespace {

using Json = nlohmann::json;
using Kind = CompileOutcome::Kind;

constexpr int kFormat = 1;
constexpr size_t kManifestLimit = size_t{1} << 20;
constexpr size_t kShownLimit = 80;

constexpr std::array<std::string_view, 5> kOutcomeNames = {"built", "rejected", "crashed",
                                                           "timed out", "out of memory"};

std::optional<Kind> parse_outcome(std::string_view name) {
  for (size_t i = 0; i < kOutcomeNames.size(); ++i) {
    if (kOutcomeNames[i] == name) return static_cast<Kind>(i);
  }
  return std::nullopt;
}

struct Manifest {
  std::vector<CacheKey::Item> items;
  std::string group, blob_sha256;
  size_t blob_bytes = 0;
  CompileOutcome outcome;  // without its blob
};

std::string to_text(const Manifest& manifest) {
  Json key = Json::array();
  for (const CacheKey::Item& item : manifest.items) {
    key.push_back({{"label", item.label}, {"sha256", item.sha256}, {"shown", item.shown}});
  }
  const CompileOutcome& outcome = manifest.outcome;
  const Json json = {{"format", kFormat},
                     {"key", std::move(key)},
                     {"group", manifest.group},
                     {"outcome", outcome_name(outcome.kind)},
                     {"reason", outcome.reason},
                     {"log_tail", outcome.log_tail},
                     {"seconds", outcome.seconds},
                     {"peak_memory_bytes", outcome.peak_memory_bytes},
                     {"seconds_limit", outcome.seconds_limit},
                     {"memory_limit_bytes", outcome.memory_limit_bytes},
                     {"blob_sha256", manifest.blob_sha256},
                     {"blob_bytes", manifest.blob_bytes}};
  // Logs of compilers are any bytes; what is not UTF-8 becomes U+FFFD.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The manifest, or what is wrong with it.
Result<Manifest> parse_manifest(const fs::path& path) {
  try {
    const Json json = Json::parse(read_text(path, kManifestLimit));
    if (json.at("format").get<int>() != kFormat) {
      return Error{ErrorKind::kBadInput, path.string(), "manifest has another format", "", ""};
    }
    Manifest manifest;
    for (const Json& item : json.at("key")) {
      manifest.items.push_back({item.at("label").get<std::string>(),
                                item.at("sha256").get<std::string>(),
                                item.at("shown").get<std::string>()});
    }
    manifest.group = json.at("group").get<std::string>();
    const auto kind = parse_outcome(json.at("outcome").get<std::string>());
    if (!kind) return Error{ErrorKind::kBadInput, path.string(), "unknown outcome", "", ""};
    manifest.outcome.kind = *kind;
    manifest.outcome.reason = json.at("reason").get<std::string>();
    manifest.outcome.log_tail = json.at("log_tail").get<std::string>();
    manifest.outcome.seconds = json.at("seconds").get<double>();
    manifest.outcome.peak_memory_bytes = json.at("peak_memory_bytes").get<int64_t>();
    manifest.outcome.seconds_limit = json.at("seconds_limit").get<double>();
    manifest.outcome.memory_limit_bytes = json.at("memory_limit_bytes").get<int64_t>();
    manifest.blob_sha256 = json.at("blob_sha256").get<std::string>();
    manifest.blob_bytes = json.at("blob_bytes").get<size_t>();
    return manifest;
  } catch (const Json::exception& e) {
    return Error{ErrorKind::kBadInput, path.string(), "manifest is not as written", e.what(), ""};
  } catch (const UserError& e) {
    return e.error();
  }
}

// The blob if it is the one that the manifest describes.
Result<Blob> read_blob(const fs::path& path, const Manifest& manifest) {
  try {
    const auto file = FileBytes::open(path);
    if (file->bytes().size() != manifest.blob_bytes) {
      return Error{ErrorKind::kBadInput, path.string(), "size differs from the manifest",
                   std::to_string(file->bytes().size()) + " bytes", ""};
    }
    // Copied before it is checked, so that what was checked is what is used.
    Blob blob(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
    const std::string digest = sha256_hex(blob);
    if (digest != manifest.blob_sha256) {
      return Error{ErrorKind::kBadInput, path.string(), "SHA-256 differs from the manifest", digest,
                   ""};
    }
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

fs::path manifest_path(const fs::path& directory, const std::string& digest) {
  return directory / "parts" / (digest + ".json");
}

fs::path blob_path(const fs::path& directory, const std::string& digest) {
  return directory / "parts" / (digest + ".blob");
}

}  // namespace

void CacheKey::add(std::string label, std::string_view value) {
  NPU_CHECK(find_item(items_, label) == nullptr, "key label " + label + " added twice");
  const bool short_line =
      value.size() <= kShownLimit &&
      std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c != '\x7f'; });
  items_.push_back({std::move(label), sha256_hex(value), short_line ? std::string(value) : ""});
}

std::string CacheKey::digest() const {
  Sha256 digest;
  for (const Item& item : items_) digest.update(item.label + '\0' + item.sha256 + '\n');
  return digest.hex();
}

std::string_view outcome_name(CompileOutcome::Kind kind) {
  return kOutcomeNames[static_cast<size_t>(kind)];
}

Cache::Cache(fs::path directory) : directory_(std::move(directory)) {}

std::optional<CompileOutcome> Cache::get(const CacheKey& key) const {
  const std::string digest = key.digest();
  const fs::path path = manifest_path(directory_, digest);
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;

  const auto drop = [&](const Error& reason) {
    log_warn("cache", "entry dropped: " + reason.text());
    fs::remove(path, error);  // in a read-only cache it stays, and is dropped again next time
    fs::remove(blob_path(directory_, digest), error);
    return std::nullopt;
  };
  Result<Manifest> manifest = parse_manifest(path);
  if (!manifest) return drop(manifest.error());
  if (!same_items(manifest.value().items, key.items())) {
    return drop({ErrorKind::kBadInput, path.string(), "manifest belongs to another key", "", ""});
  }
  CompileOutcome outcome = std::move(manifest.value().outcome);
  if (outcome.built()) {
    Result<Blob> blob = read_blob(blob_path(directory_, digest), manifest.value());
    if (!blob) return drop(blob.error());
    outcome.blob = std::move(blob.value());
  }
  outcome.from_cache = true;
  return outcome;
}

void Cache::put(const CacheKey& key, const CompileOutcome& outcome, std::string_view group) const {
  const std::string digest = key.digest();
  std::error_code error;
  fs::create_directories(directory_ / "parts", error);
  if (error) {
    fail(errno_kind(error.value()), directory_.string(), "cache can't be created", error.message(),
         "choose another --cache-dir");
  }
  Manifest manifest;
  manifest.items = key.items();
  manifest.group = std::string(group);
  manifest.outcome = outcome;
  if (outcome.built()) {
    manifest.blob_sha256 = sha256_hex(outcome.blob);
    manifest.blob_bytes = outcome.blob.size();
    publish_text(blob_path(directory_, digest), outcome.blob);
  }
  publish_text(manifest_path(directory_, digest), to_text(manifest));  // last: it makes the entry
}

std::string Cache::explain_miss(const CacheKey& key, std::string_view group) const {
  std::vector<std::string> nearest;
  size_t least = SIZE_MAX;
  std::error_code error;
  std::set<fs::path> paths;  // sorted, so that equal caches give equal explanations
  for (fs::directory_iterator it(directory_ / "parts", error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".json") paths.insert(it->path());
  }
  const CacheKey::Item* part = find_item(key.items(), "part");
  for (const fs::path& path : paths) {
    const Result<Manifest> manifest = parse_manifest(path);
    if (!manifest) continue;  // get() warns about it when its turn comes
    const CacheKey::Item* other = find_item(manifest.value().items, "part");
    const bool same_part = part && other && part->sha256 == other->sha256;
    if (!same_part && manifest.value().group != group) continue;
    std::vector<std::string> lines = differences(key.items(), manifest.value().items);
    // Among equals the entry with as many labels: "changed" says more than "added".
    const bool other_labels = manifest.value().items.size() != key.items().size();
    const size_t distance = 2 * lines.size() + (other_labels ? 1 : 0);
    if (distance >= least) continue;
    least = distance;
    nearest = std::move(lines);
  }
  if (least == SIZE_MAX) return "no entry for this part or any like it";
  if (nearest.empty()) return "the entry for it can't be used";
  std::string text;
  for (const std::string& line : nearest) text += (text.empty() ? "" : "; ") + line;
  return text;
}

}  // namespace npu
