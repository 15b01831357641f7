// See jinja_lexer.h.
#include "io/jinja_lexer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "io/jinja_value.h"
#include "io/unicode.h"

namespace npu::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// Line ends become \n; one at the very end is dropped.
std::string normal_lines(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
      continue;
    }
    text += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normal_lines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_text();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  [[noreturn]] void fail(std::string what, std::string got = "") const {
    throw TemplateError{std::move(what), std::move(got), line_};
  }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  void advance(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + bytes),
                                         '\n'));
    at_ += bytes;
  }
  void skip_space() {
    size_t bytes = rest().size() - strip_space(rest(), true, false).size();
    advance(bytes);
  }

  // Text up to the next tag, and the tag.
  void read_text() {
    size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        add_text(rest());
        advance(source_.size() - at_);
        return;
      }
      const char c = source_[tag + 1];
      if (c == '{' || c == '%' || c == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    const char mark = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    std::string_view text = rest().substr(0, tag - at_);
    if (mark == '-') {
      text = strip_space(text, false, true);
    } else if (mark != '+' && kind != '{') {          // lstrip_blocks
      const size_t last_line = text.rfind('\n') + 1;  // npos + 1 is 0
      if ((last_line > 0 || at_line_start_) && strip_space(text.substr(last_line)).empty())
        text = text.substr(0, last_line);
    }
    add_text(text);
    advance(tag - at_ + (mark == '-' || mark == '+' ? 3 : 2));
    if (kind == '#') {
      const size_t end = rest().find("#}");
      if (end == std::string_view::npos) fail("a comment is not closed");
      const char before = end > 0 ? rest()[end - 1] : '\0';
      advance(end + 2);
      after_tag(before, true);
    } else {
      read_tag(kind == '%');
    }
  }

  void add_text(std::string_view text) {
    if (!text.empty()) add(TokenKind::kText, std::string(text));
  }

  // White space that a tag's end takes with it.
  void after_tag(char mark, bool trims_line) {
    const size_t before = at_;
    if (mark == '-')
      skip_space();
    else if (mark != '+' && trims_line && rest().starts_with('\n'))
      advance(1);
    at_line_start_ = at_ > before && source_[at_ - 1] == '\n';
  }

  void read_tag(bool statement) {
    add(statement ? TokenKind::kStatementBegin : TokenKind::kOutputBegin, "");
    std::string open;  // brackets: within them an end mark is no end
    while (true) {
      skip_space();
      if (rest().empty()) fail("a tag is not closed");
      if (open.empty() && read_tag_end(statement)) return;
      const char c = rest()[0];
      if (c == '\'' || c == '"')
        read_string(c);
      else if (is_digit(c))
        read_number();
      else if (is_name_start(c))
        read_name();
      else
        read_operator(open);
    }
  }

  bool read_tag_end(bool statement) {
    const std::string_view end = statement ? "%}" : "}}";
    const char mark = rest()[0];
    const bool marked = mark == '-' || (mark == '+' && statement);
    if (!rest().substr(marked ? 1 : 0).starts_with(end)) return false;
    add(statement ? TokenKind::kStatementEnd : TokenKind::kOutputEnd, "");
    advance(marked ? 3 : 2);
    after_tag(marked ? mark : '\0', statement);
    return true;
  }

  void read_name() {
    size_t end = 1;
    while (end < rest().size() && (is_name_start(rest()[end]) || is_digit(rest()[end]))) ++end;
    add(TokenKind::kName, std::string(rest().substr(0, end)));
    advance(end);
  }

  void read_number() {
    size_t end = 0;
    const auto digits = [&] {
      while (end < rest().size() && is_digit(rest()[end])) ++end;
    };
    digits();
    bool whole = true;
    if (end + 1 < rest().size() && rest()[end] == '.' && is_digit(rest()[end + 1])) {
      whole = false;
      ++end;
      digits();
    }
    if (end < rest().size() && (is_name_start(rest()[end])))
      fail("this form of a number is not supported", std::string(rest().substr(0, end + 1)));
    std::string text(rest().substr(0, end));
    if (whole && text.size() > 1 && text[0] == '0') fail("a number begins with 0", text);
    add(whole ? TokenKind::kInteger : TokenKind::kFloat, std::move(text));
    advance(end);
  }

  void read_operator(std::string& open) {
    constexpr std::array<std::string_view, 27> kOperators = {
        "==", "!=", ">=", "<=", "//", "**", "+", "-", "/", "*", "%", "~", "[", "]",
        "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!"};
    for (const std::string_view op : kOperators) {
      if (!rest().starts_with(op)) continue;
      if (op == "(" || op == "[" || op == "{") open += op;
      if (op == ")" || op == "]" || op == "}") {
        if (open.empty()) fail("a bracket closes nothing", std::string(op));
        open.pop_back();
      }
      add(TokenKind::kOperator, std::string(op));
      advance(op.size());
      return;
    }
    fail("a character has no meaning here",
         std::string(rest().substr(0, static_cast<size_t>(code_point_at(rest(), 0).bytes))));
  }

  // Escapes are Python's.
  void read_string(char quote) {
    std::string text;
    size_t i = 1;
    while (true) {
      if (i >= rest().size()) fail("a string is not closed");
      const char c = rest()[i++];
      if (c == quote) break;
      if (c != '\\') {
        text += c;
        continue;
      }
      if (i >= rest().size()) fail("a string is not closed");
      i += read_escape(rest().substr(i), text);
    }
    add(TokenKind::kString, std::move(text));
    advance(i);
  }

  // Appends what the escape after a backslash stands for; the bytes it takes.
  size_t read_escape(std::string_view escape, std::string& text) const {
    constexpr std::string_view kNames = "abfnrtv\\'\"", kValues = "\a\b\f\n\r\t\v\\'\"";
    const char c = escape[0];
    if (const size_t i = kNames.find(c); i != std::string_view::npos) {
      text += kValues[i];
      return 1;
    }
    if (c == '\n') return 1;
    if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      append_escaped(escape.substr(1, digits), digits, 16, text);
      return 1 + digits;
    }
    if (c >= '0' && c <= '7') {
      size_t digits = 1;
      while (digits < 3 && digits < escape.size() && escape[digits] >= '0' && escape[digits] <= '7')
        ++digits;
      append_escaped(escape.substr(0, digits), digits, 8, text);
      return digits;
    }
    if (c == 'N') fail("\\N{…} in a string is not supported");
    text += {'\\', c};  // an unknown escape stands for itself
    return 1;
  }

  void append_escaped(std::string_view digits, size_t wanted, int base, std::string& text) const {
    char32_t value = 0;
    for (const char c : digits) {
      const size_t digit = std::string_view("0123456789abcdef")
                               .find(c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c);
      if (digit >= static_cast<size_t>(base))
        fail("a string has a broken escape", std::string(digits));
      value = value * static_cast<char32_t>(base) + static_cast<char32_t>(digit);
    }
    if (digits.size() != wanted || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
      fail("a string has an escape that is no character", std::string(digits));
    append_utf8(text, value);
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace npu::jinja
