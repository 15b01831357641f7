// The JSON text of a cache entry. Read as hostile input.
#include "compile/manifest.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/hash.h"

namespace npu {
namespace {

using Json = nlohmann::json;
using Kind = CompileOutcome::Kind;

constexpr int kFormat = 1;

constexpr std::array<std::string_view, 5> kOutcomeNames = {"built", "rejected", "crashed",
                                                           "timed out", "out of memory"};

std::optional<Kind> parse_outcome(std::string_view name) {
  for (size_t i = 0; i < kOutcomeNames.size(); ++i) {
    if (kOutcomeNames[i] == name) return static_cast<Kind>(i);
  }
  return std::nullopt;
}

// What is shown in a terminal: short and without control characters.
bool is_label(std::string_view text) {
  constexpr size_t kLongest = 256;
  return text.size() <= kLongest && std::none_of(text.begin(), text.end(), [](char c) {
           return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
         });
}

// Absent from entries of versions that did not write it.
Result<PartOrigin> read_origin(const Json& manifest, const std::string& where) {
  PartOrigin origin;
  const auto pairs = manifest.find("origin");
  if (pairs == manifest.end()) return origin;
  for (const Json& pair : *pairs) {
    origin.emplace_back(pair.at(0).get<std::string>(), pair.at(1).get<std::string>());
    if (origin.size() > kOriginLimit || !is_label(origin.back().first) ||
        !is_label(origin.back().second)) {
      return Error{ErrorKind::kBadInput, where, "origin is too long or not printable", "", ""};
    }
  }
  return origin;
}

}  // namespace

std::string_view outcome_name(CompileOutcome::Kind kind) {
  return kOutcomeNames[static_cast<size_t>(kind)];
}

std::string print_manifest(const Manifest& manifest) {
  Json key = Json::array();
  for (const CacheKey::Item& item : manifest.items) {
    key.push_back({{"label", item.label}, {"sha256", item.sha256}, {"shown", item.shown}});
  }
  Json origin = Json::array();
  for (const auto& [label, value] : manifest.origin) {
    if (origin.size() < kOriginLimit && is_label(label) && is_label(value)) {
      origin.push_back(Json::array({label, value}));
    }
  }
  const CompileOutcome& outcome = manifest.outcome;
  const Json json = {{"format", kFormat},
                     {"key", std::move(key)},
                     {"group", manifest.group},
                     {"origin", std::move(origin)},
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

Result<Manifest> parse_manifest(std::string_view text, const std::string& where) {
  try {
    const Json json = Json::parse(text);
    if (json.at("format").get<int>() != kFormat) {
      return Error{ErrorKind::kBadInput, where, "manifest has another format", "", ""};
    }
    Manifest manifest;
    for (const Json& item : json.at("key")) {
      manifest.items.push_back({item.at("label").get<std::string>(),
                                item.at("sha256").get<std::string>(),
                                item.at("shown").get<std::string>()});
    }
    manifest.group = json.at("group").get<std::string>();
    Result<PartOrigin> origin = read_origin(json, where);
    if (!origin) return origin.error();
    manifest.origin = std::move(origin.value());
    const auto kind = parse_outcome(json.at("outcome").get<std::string>());
    if (!kind) return Error{ErrorKind::kBadInput, where, "unknown outcome", "", ""};
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
    return Error{ErrorKind::kBadInput, where, "manifest is not as written", e.what(), ""};
  }
}

std::optional<Error> check_blob(const Manifest& manifest, std::string_view blob,
                                const std::string& where) {
  if (blob.size() != manifest.blob_bytes) {
    return Error{ErrorKind::kBadInput, where, "size differs from the manifest",
                 std::to_string(blob.size()) + " bytes", ""};
  }
  if (!manifest.outcome.built()) return std::nullopt;
  const std::string digest = sha256_hex(blob);
  if (digest == manifest.blob_sha256) return std::nullopt;
  return Error{ErrorKind::kBadInput, where, "SHA-256 differs from the manifest", digest, ""};
}

std::string key_digest(const std::vector<CacheKey::Item>& items) {
  Sha256 digest;
  for (const CacheKey::Item& item : items) digest.update(item.label + '\0' + item.sha256 + '\n');
  return digest.hex();
}

}  // namespace npu
