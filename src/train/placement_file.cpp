// Evidence on disk, beside the compiled parts. Read as hostile input.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/log.h"
#include "train/placement.h"

namespace npu {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kTextLimit = size_t{1} << 20;
constexpr size_t kMostItems = 256;  // of any list in it

// JSON has no infinity.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

double read_number(const Json& json) {
  if (json.is_null()) return std::numeric_limits<double>::infinity();
  const double value = json.get<double>();
  if (!std::isfinite(value) || value < 0) throw std::invalid_argument("number out of range");
  return value;
}

// Shown in a terminal, so without control characters.
std::string read_line(const Json& json) {
  const std::string text = json.get<std::string>();
  const bool plain = text.size() <= 512 && std::none_of(text.begin(), text.end(), [](char c) {
                       return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
                     });
  if (!plain) throw std::invalid_argument("text is too long or not printable");
  return text;
}

std::string read_group(const Json& json) {
  std::string group = json.get<std::string>();
  if (std::find(kPlacementGroups.begin(), kPlacementGroups.end(), group) ==
      kPlacementGroups.end()) {
    throw std::invalid_argument("unknown group");
  }
  return group;
}

const Json& read_list(const Json& json) {
  if (!json.is_array() || json.size() > kMostItems) throw std::invalid_argument("not a short list");
  return json;
}

HostGroups read_groups(const Json& json) {
  HostGroups groups;
  for (const Json& group : read_list(json)) groups.insert(read_group(group));
  return groups;
}

Placement read(const Json& json) {
  if (json.at("format").get<int>() != kFormat) throw std::invalid_argument("another format");
  Placement p;
  p.digest = read_line(json.at("digest"));
  p.backend = read_line(json.at("backend"));
  p.compiler = read_line(json.at("compiler"));
  p.machine = read_line(json.at("machine"));
  p.layers = json.at("layers").get<int64_t>();
  for (const Json& g : read_list(json.at("groups"))) {
    p.groups.push_back({read_group(g.at("group")), read_number(g.at("device_seconds")),
                        read_number(g.at("host_seconds")), read_number(g.at("grad_rel")),
                        read_number(g.at("loss_rel")), g.at("on_device").get<bool>()});
  }
  for (const Json& t : read_list(json.at("trials"))) {
    p.trials.push_back({read_groups(t.at("host_groups")), read_number(t.at("step_seconds")),
                        read_number(t.at("grad_rel")), read_number(t.at("loss_rel")),
                        t.at("pass").get<bool>()});
  }
  p.default_groups = read_groups(json.at("default_groups"));
  p.default_seconds = read_number(json.at("default_seconds"));
  p.host_groups = read_groups(json.at("host_groups"));
  p.step_seconds = read_number(json.at("step_seconds"));
  return p;
}

fs::path path_of(const fs::path& cache_dir, const std::string& digest) {
  return cache_dir / "placement" / (digest + ".json");
}

}  // namespace

std::string print_evidence(const Placement& p) {
  Json json = {{"format", kFormat},
               {"digest", p.digest},
               {"backend", p.backend},
               {"compiler", p.compiler},
               {"machine", p.machine},
               {"layers", p.layers},
               {"groups", Json::array()},
               {"trials", Json::array()},
               {"default_groups", p.default_groups},
               {"default_seconds", number(p.default_seconds)},
               {"host_groups", p.host_groups},
               {"step_seconds", number(p.step_seconds)}};
  for (const GroupMeasure& g : p.groups) {
    json["groups"].push_back({{"group", g.group},
                              {"device_seconds", number(g.device_seconds)},
                              {"host_seconds", number(g.host_seconds)},
                              {"grad_rel", number(g.grad_rel)},
                              {"loss_rel", number(g.loss_rel)},
                              {"on_device", g.on_device}});
  }
  for (const PlacementTrial& t : p.trials) {
    json["trials"].push_back({{"host_groups", t.host_groups},
                              {"step_seconds", number(t.step_seconds)},
                              {"grad_rel", number(t.grad_rel)},
                              {"loss_rel", number(t.loss_rel)},
                              {"pass", t.pass}});
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<Placement> parse_evidence(std::string_view text, const std::string& where) {
  try {
    return read(Json::parse(text));
  } catch (const std::exception& e) {  // of the JSON library or from here
    return Error{ErrorKind::kBadInput, where, "placement evidence is not as written", e.what(), ""};
  }
}

std::optional<Placement> read_placement(const fs::path& cache_dir, const std::string& digest) {
  const fs::path path = path_of(cache_dir, digest);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  const auto drop = [&](const Error& error) -> std::optional<Placement> {
    log_warn("placement", "evidence dropped: " + error.text());
    fs::remove(path, ignored);
    return std::nullopt;
  };
  try {
    Result<Placement> placement = parse_evidence(read_text(path, kTextLimit), path.string());
    if (!placement) return drop(placement.error());
    if (placement.value().digest == digest) return std::move(placement.value());
    return drop(
        {ErrorKind::kBadInput, path.string(), "evidence belongs to something else", "", ""});
  } catch (const UserError& e) {
    return drop(e.error());
  }
}

void write_placement(const fs::path& cache_dir, const Placement& placement) {
  std::error_code error;
  fs::create_directories(cache_dir / "placement", error);
  if (error) {
    fail(errno_kind(error.value()), cache_dir.string(), "cache can't be created", error.message(),
         "choose another --cache-dir");
  }
  publish_text(path_of(cache_dir, placement.digest), print_evidence(placement));
}

}  // namespace npu
