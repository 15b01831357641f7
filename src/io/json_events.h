// JSON text → events for a handler, with the place of each failure. Private to src/io: it includes
// nlohmann/json, whose SAX parser does the work without recursion.
#pragma once

#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "io/json.h"

namespace npu {

// Reads characters and tells `*reached` how far the parser has come: SAX events carry no position.
class TrackedCharacters {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackedCharacters(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  TrackedCharacters& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  TrackedCharacters operator++(int) {
    TrackedCharacters before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TrackedCharacters& other) const { return at_ == other.at_; }
  bool operator!=(const TrackedCharacters& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// What a handler answers with when an event breaks a rule: refuse() returns false, which ends the
// parse.
class JsonHandler {
 public:
  const std::string& what() const { return what_; }
  const std::string& got() const { return got_; }
  bool binary(Json::binary_t&) { return refuse("binary values are not JSON"); }
  // Called by the parser for a syntax error; `error` is an nlohmann exception.
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
    return refuse("not valid JSON", short_reason(error.what()));
  }

 protected:
  bool refuse(std::string what, std::string got = "") {
    what_ = std::move(what);
    got_ = std::move(got);
    return false;
  }

 private:
  static std::string short_reason(std::string_view text);

  std::string what_, got_;
};

// What must hold before any parser sees the text: size, UTF-8, no NUL (which nlohmann takes as the
// end) and no byte-order mark (which it skips). Empty when all is well.
std::optional<Error> check_json_text(std::string_view text, std::string_view where,
                                     size_t max_bytes);

// "WHERE:LINE" of an offset.
std::string line_of(std::string_view where, std::string_view text, size_t offset);

// Feeds `text` to `handler`; the error that stopped it, if any.
template <class Handler>
std::optional<Error> feed_json(std::string_view text, std::string_view where, size_t max_bytes,
                               Handler& handler) {
  if (auto error = check_json_text(text, where, max_bytes)) return error;
  const char* reached = text.data();
  const TrackedCharacters first(text.data(), &reached), last(text.data() + text.size(), &reached);
  if (Json::sax_parse(first, last, &handler)) return std::nullopt;
  const size_t offset = static_cast<size_t>(reached - text.data());
  return Error{ErrorKind::kBadInput, line_of(where, text, offset == 0 ? 0 : offset - 1),
               handler.what(), handler.got(), ""};
}

}  // namespace npu
