// Cache entries in one file: a tag, then manifest and blob of each entry as length-prefixed fields.
// Names are not carried: they follow from the manifests' keys.
#include "compile/cache.h"
#include "compile/fields.h"
#include "compile/manifest.h"

namespace npu {
namespace {

constexpr std::string_view kTag = "npu-lora-bundle-1";
constexpr size_t kBlobLimit = size_t{1} << 40;

struct BundleEntry {
  Manifest manifest;
  std::string_view blob;
};

std::vector<BundleEntry> read_entries(std::string_view bytes, const std::string& file) {
  const auto fields = unpack_fields(bytes);
  if (!fields || fields->empty() || (*fields)[0] != kTag || fields->size() % 2 == 0) {
    fail_input(file, "is not a bundle of compiled parts", "",
               "bundles are made by `npu-lora compile --export FILE`");
  }
  std::vector<BundleEntry> entries;
  for (size_t i = 1; i < fields->size(); i += 2) {
    const std::string where = file + ": entry " + std::to_string(i / 2);
    const std::string_view text = (*fields)[i];
    if (text.size() > kManifestLimit) fail_input(where, "manifest is too large");
    Manifest manifest = parse_manifest(text, where).take();
    if (auto error = check_blob(manifest, (*fields)[i + 1], where)) throw UserError(*error);
    entries.push_back({std::move(manifest), (*fields)[i + 1]});
  }
  return entries;
}

}  // namespace

size_t Cache::export_bundle(const std::vector<std::string>& digests, const fs::path& file) const {
  std::string bytes;
  append_field(bytes, kTag);
  size_t count = 0;
  for (const std::string& digest : digests) {
    std::error_code error;
    const fs::path path = manifest_path(digest);
    if (!fs::exists(path, error)) continue;
    const std::string text = read_text(path, kManifestLimit);
    const Manifest manifest = parse_manifest(text, path.string()).take();
    const std::string blob =
        manifest.outcome.built() ? read_text(blob_path(digest), kBlobLimit) : "";
    if (auto wrong = check_blob(manifest, blob, blob_path(digest).string()))
      throw UserError(*wrong);
    append_field(bytes, text);
    append_field(bytes, blob);
    ++count;
  }
  publish_text(file, bytes);
  return count;
}

size_t Cache::import_bundle(const fs::path& file) const {
  const auto mapped = FileBytes::open(file);
  const std::string_view bytes(reinterpret_cast<const char*>(mapped->bytes().data()),
                               mapped->bytes().size());
  const std::vector<BundleEntry> entries = read_entries(bytes, file.string());
  for (const BundleEntry& entry : entries) publish_entry(entry.manifest, entry.blob);
  return entries.size();
}

}  // namespace npu
