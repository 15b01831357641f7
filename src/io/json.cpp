// JSON text → tree, with the limits that nlohmann/json does not set: size, depth, duplicate keys.
#include "io/json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>
#include <vector>

#include "io/json_events.h"
#include "io/quote.h"

namespace npu {
namespace {

constexpr size_t kLongestReason = 160;

// Builds the tree itself, since the library's own builder looks a key up by scanning the object (a
// vocabulary has 10⁵ keys) and lets the last duplicate win.
class TreeBuilder : public JsonHandler {
 public:
  explicit TreeBuilder(int max_depth) : max_depth_(max_depth) {}
  Json take() { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(Json::number_integer_t value) { return add(value); }
  bool number_unsigned(Json::number_unsigned_t value) { return add(value); }
  bool number_float(Json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool start_object(size_t) { return open(Json::object()); }
  bool end_object() { return close(); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    Frame& frame = open_.back();
    if (!frame.keys.insert(name).second) return refuse("duplicate key", in_quotes(name));
    frame.key = std::move(name);
    return true;
  }

 private:
  struct Frame {
    Json value;
    std::string key;  // of the member being read
    std::unordered_set<std::string> keys;
  };

  bool open(Json value) {
    if (open_.size() >= static_cast<size_t>(max_depth_))
      return refuse("nested deeper than " + std::to_string(max_depth_) + " levels");
    open_.push_back({std::move(value), {}, {}});
    return true;
  }
  bool close() {
    Json value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }
  bool add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Frame& frame = open_.back();
    if (frame.value.is_array())
      frame.value.push_back(std::move(value));
    else
      frame.value.get_ref<Json::object_t&>().emplace_back(std::move(frame.key), std::move(value));
    return true;
  }

  int max_depth_;
  std::vector<Frame> open_;
  Json root_;
};

// Length of the well-formed UTF-8 sequence at `at`, 0 when there is none (Unicode table 3-7).
size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const auto between = [&](size_t i, unsigned low, unsigned high) {
    return byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return between(1, 0x80, 0xbf) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const bool second = between(1, lead == 0xe0 ? 0xa0 : 0x80, lead == 0xed ? 0x9f : 0xbf);
    return second && between(2, 0x80, 0xbf) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const bool second = between(1, lead == 0xf0 ? 0x90 : 0x80, lead == 0xf4 ? 0x8f : 0xbf);
    return second && between(2, 0x80, 0xbf) && between(3, 0x80, 0xbf) ? 4 : 0;
  }
  return 0;
}

}  // namespace

std::string JsonHandler::short_reason(std::string_view text) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing
  // …"
  const size_t colon = text.find(": ");
  if (colon != std::string_view::npos) text.remove_prefix(colon + 2);
  if (text.size() <= kLongestReason) return std::string(text);
  size_t end = kLongestReason;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "…";
}

std::string line_of(std::string_view where, std::string_view text, size_t offset) {
  const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(offset, text.size()));
  const auto line = 1 + std::count(text.begin(), end, '\n');
  return std::string(where) + ":" + std::to_string(line);
}

std::optional<Error> check_json_text(std::string_view text, std::string_view where,
                                     size_t max_bytes) {
  const auto broken = [&](size_t offset, std::string what, std::string got) {
    return Error{ErrorKind::kBadInput, line_of(where, text, offset), std::move(what),
                 std::move(got), ""};
  };
  if (text.size() > max_bytes)
    return broken(0, "JSON text is larger than " + std::to_string(max_bytes) + " bytes",
                  std::to_string(text.size()) + " bytes");
  size_t bad = 0;
  if (!valid_utf8(text, &bad))
    return broken(bad, "text is not UTF-8",
                  "an ill-formed sequence at byte " + std::to_string(bad));
  if (text.starts_with("\xef\xbb\xbf"))
    return broken(0, "JSON text must not start with a byte-order mark", "EF BB BF");
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    return broken(nul, "JSON text must not hold a NUL byte", "one at byte " + std::to_string(nul));
  return std::nullopt;
}

Result<Json> parse_json(std::string_view text, std::string_view where, JsonLimits limits) {
  TreeBuilder builder(limits.max_depth);
  if (auto error = feed_json(text, where, limits.max_bytes, builder)) return *std::move(error);
  return builder.take();
}

Json read_json_file(const fs::path& path, JsonLimits limits) {
  return parse_json(read_text(path, limits.max_bytes), path.string(), limits).take();
}

bool valid_utf8(std::string_view text, size_t* bad_offset) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    if (length == 0) {
      if (bad_offset != nullptr) *bad_offset = at;
      return false;
    }
    at += length;
  }
  return true;
}

}  // namespace npu
