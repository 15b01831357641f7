// See split_rules.h. Each matcher follows its pattern's alternatives in order, from left to right.
#include "io/split_rules.h"

#include "io/unicode.h"

namespace npu {
namespace {

struct KnownPattern {
  std::string_view text;
  SplitRule rule;
};
constexpr KnownPattern kKnownPatterns[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     SplitRule::kGpt2},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitRule::kLlama3},
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
     R"(|\s*[\r\n]+|\s+(?!\S)|\s+)",
     SplitRule::kQwen2},
};

enum class Kind { kLetter, kNumber, kSpace, kOther, kEnd };

// A place in the text and the kind of code point there.
class Cursor {
 public:
  Cursor(std::string_view text, size_t at) : text_(text), at_(at) { look(); }
  size_t at() const { return at_; }
  Kind kind() const { return kind_; }
  bool is(char32_t c) const { return kind_ != Kind::kEnd && point_.value == c; }
  bool is_line_end() const { return is('\r') || is('\n'); }
  void step() {
    at_ += static_cast<size_t>(point_.bytes);
    look();
  }
  void skip(Kind kind) {
    while (kind_ == kind) step();
  }

 private:
  void look() {
    if (at_ >= text_.size()) {
      kind_ = Kind::kEnd;
      return;
    }
    point_ = code_point_at(text_, at_);
    kind_ = is_letter(point_.value)   ? Kind::kLetter
            : is_number(point_.value) ? Kind::kNumber
            : is_space(point_.value)  ? Kind::kSpace
                                      : Kind::kOther;
  }

  std::string_view text_;
  size_t at_;
  CodePoint point_;
  Kind kind_ = Kind::kEnd;
};

// Bytes of 's 't 're 've 'm 'll 'd at `at`, or 0. Ignoring case also lets U+017F (ſ) stand for s.
size_t contraction(std::string_view text, size_t at, bool ignore_case) {
  if (text[at] != '\'') return 0;
  const std::string_view rest = text.substr(at + 1);
  if (ignore_case && rest.starts_with("\xc5\xbf")) return 3;
  const auto lower = [&](size_t i) -> char {
    if (i >= rest.size()) return 0;
    const char c = rest[i];
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  const char first = lower(0), second = lower(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if ((first == 'r' || first == 'v') && second == 'e') return 3;
  if (first == 'l' && second == 'l') return 3;
  return 0;
}

// \s+(?!\S)|\s+ : a run of white space gives its last code point to what follows, unless it is
// alone or ends the text.
size_t space_end(std::string_view text, size_t at) {
  Cursor cursor(text, at);
  size_t last = at;
  while (cursor.kind() == Kind::kSpace) {
    last = cursor.at();
    cursor.step();
  }
  return cursor.kind() == Kind::kEnd || last == at ? cursor.at() : last;
}

size_t gpt2_end(std::string_view text, size_t at) {
  if (const size_t bytes = contraction(text, at, false)) return at + bytes;
  Cursor cursor(text, at);
  if (cursor.is(' ')) cursor.step();
  const Kind kind = cursor.kind();
  if (kind == Kind::kSpace || kind == Kind::kEnd) return space_end(text, at);
  cursor.skip(kind);
  return cursor.at();
}

// \s*[\r\n]+ : through the last line end of the run of white space; `at` when it has none.
size_t line_end(std::string_view text, size_t at) {
  Cursor cursor(text, at);
  size_t end = at;
  while (cursor.kind() == Kind::kSpace) {
    const bool ends_line = cursor.is_line_end();
    cursor.step();
    if (ends_line) end = cursor.at();
  }
  return end;
}

size_t llama3_end(std::string_view text, size_t at, int max_digits) {
  if (const size_t bytes = contraction(text, at, true)) return at + bytes;
  Cursor cursor(text, at);
  // [^\r\n\p{L}\p{N}]?\p{L}+
  if (!cursor.is_line_end() && (cursor.kind() == Kind::kSpace || cursor.kind() == Kind::kOther))
    cursor.step();
  if (cursor.kind() == Kind::kLetter) {
    cursor.skip(Kind::kLetter);
    return cursor.at();
  }
  cursor = Cursor(text, at);
  if (cursor.kind() == Kind::kNumber) {
    for (int i = 0; i < max_digits && cursor.kind() == Kind::kNumber; ++i) cursor.step();
    return cursor.at();
  }
  // ␠?[^\s\p{L}\p{N}]+[\r\n]*
  if (cursor.is(' ')) cursor.step();
  if (cursor.kind() == Kind::kOther) {
    cursor.skip(Kind::kOther);
    while (cursor.is_line_end()) cursor.step();
    return cursor.at();
  }
  const size_t end = line_end(text, at);
  return end > at ? end : space_end(text, at);
}

void split_digits(std::string_view text, std::vector<std::string_view>& pieces) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    const size_t end = at + static_cast<size_t>(c.bytes);
    if (is_digit_piece(c.value)) {
      if (at > begin) pieces.push_back(text.substr(begin, at - begin));
      pieces.push_back(text.substr(at, end - at));
      begin = end;
    }
    at = end;
  }
  if (begin < text.size()) pieces.push_back(text.substr(begin));
}

}  // namespace

std::optional<SplitRule> rule_of_pattern(std::string_view pattern) {
  for (const KnownPattern& known : kKnownPatterns)
    if (known.text == pattern) return known.rule;
  return std::nullopt;
}

void split_text(SplitRule rule, std::string_view text, std::vector<std::string_view>& pieces) {
  if (rule == SplitRule::kDigits) return split_digits(text, pieces);
  for (size_t at = 0; at < text.size();) {
    const size_t end = rule == SplitRule::kGpt2     ? gpt2_end(text, at)
                       : rule == SplitRule::kLlama3 ? llama3_end(text, at, 3)
                                                    : llama3_end(text, at, 1);
    pieces.push_back(text.substr(at, end - at));
    at = end;
  }
}

}  // namespace npu
