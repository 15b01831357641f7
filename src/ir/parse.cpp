// Parser of the text form. The text is untrusted, so nothing here recurses and every type is
// bounded.
#include <charconv>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "ir/text.h"
#include "ir/text_chars.h"

namespace npu {
namespace {

// Reads one line from left to right. The first failure sticks: later reads give empty values and
// keep the first message, so callers check once, at the end.
class LineReader {
 public:
  explicit LineReader(std::string_view line) : rest_(line) { skip_blanks(); }

  bool failed() const { return failed_; }
  const Error& failure() const { return failure_; }
  bool at_end() const { return rest_.empty(); }

  void fail(std::string what, std::string got) {
    if (failed()) return;
    failed_ = true;
    failure_.what = std::move(what);
    failure_.got = std::move(got);
  }

  bool accept(char c) {
    if (failed() || rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    skip_blanks();
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(std::string("'") + c + "' is expected", shown(rest_));
  }

  void expect_end() {
    if (!at_end()) fail("the line ends here", shown(rest_));
  }

  std::string_view word(std::string_view what) {
    const std::string_view text = take_while(is_word_char);
    if (text.empty()) fail(std::string(what) + " is expected", shown(rest_));
    return text;
  }

  std::string quoted() {
    std::string text;
    if (failed() || rest_.empty() || rest_.front() != '"') {
      fail("a quoted name is expected", shown(rest_));
      return text;
    }
    rest_.remove_prefix(1);
    while (!rest_.empty() && rest_.front() != '"') {
      const char c = rest_.front();
      rest_.remove_prefix(1);
      text += c == '\\' ? escaped() : c;
      if (failed()) return {};
    }
    if (rest_.empty()) {
      fail("a closing '\"' is expected", "the end of the line");
      return {};
    }
    rest_.remove_prefix(1);
    skip_blanks();
    return text;
  }

  std::string_view name_or_quoted(std::string& storage) {
    if (!rest_.empty() && rest_.front() == '"') return storage = quoted();
    return word("a name");
  }

  AttrValue value() {
    if (!rest_.empty() && rest_.front() == '"') return quoted();
    if (!rest_.empty() && rest_.front() == '[') return integer_list();
    const std::string_view text = take_while(is_number_char);
    return looks_real(text) ? AttrValue(number<double>(text)) : AttrValue(number<int64_t>(text));
  }

  std::vector<int64_t> integer_list() {
    std::vector<int64_t> list;
    expect('[');
    if (accept(']')) return list;
    do {
      list.push_back(number<int64_t>(take_while(is_number_char)));
    } while (accept(','));
    expect(']');
    return list;
  }

  TensorType type() {
    const std::string_view name = word("a dtype");
    const auto dtype = parse_dtype(name);
    if (!dtype) fail("there is no such dtype", std::string(name));
    TensorType type = {dtype.value_or(DType::kF32), integer_list()};
    if (failed()) return {};
    if (auto rule = broken_type_bound(type)) fail(*rule, shape_text(type.shape));
    return type;
  }

 private:
  static std::string shown(std::string_view text) {
    constexpr size_t kShown = 40;
    if (text.empty()) return "the end of the line";
    return std::string(text.substr(0, kShown)) + (text.size() > kShown ? "…" : "");
  }

  void skip_blanks() {
    while (!rest_.empty() && (rest_.front() == ' ' || rest_.front() == '\t'))
      rest_.remove_prefix(1);
    if (!rest_.empty() && (rest_.front() == '#' || rest_.front() == '\r')) rest_ = {};
  }

  std::string_view take_while(bool (*belongs)(char)) {
    size_t length = 0;
    if (failed()) return {};
    while (length < rest_.size() && belongs(rest_[length])) ++length;
    const std::string_view text = rest_.substr(0, length);
    rest_.remove_prefix(length);
    skip_blanks();
    return text;
  }

  template <class T>
  T number(std::string_view text) {
    T value{};
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (text.empty() || error != std::errc() || stopped != end) {
      fail("a number is expected", text.empty() ? shown(rest_) : shown(text));
      return T{};
    }
    return value;
  }

  // What follows a backslash: a quote, a backslash, or xHH.
  char escaped() {
    if (!rest_.empty() && (rest_.front() == '"' || rest_.front() == '\\')) {
      const char c = rest_.front();
      rest_.remove_prefix(1);
      return c;
    }
    unsigned code = 0;
    if (rest_.size() >= 3 && rest_.front() == 'x') {
      const char* digits = rest_.data() + 1;
      const auto [stopped, error] = std::from_chars(digits, digits + 2, code, 16);
      if (error == std::errc() && stopped == digits + 2) {
        rest_.remove_prefix(3);
        return static_cast<char>(code);
      }
    }
    fail("an escape is \\\", \\\\ or \\xHH", shown(rest_));
    return '\0';
  }

  std::string_view rest_;
  bool failed_ = false;
  Error failure_;
};

// Ops whose name is one slip away: a letter too many, too few, wrong, or two exchanged.
std::string similar_ops(std::string_view name, const FindOp& find_op) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz_";
  constexpr size_t kLongest = 64;
  if (name.size() > kLongest) return "";
  std::vector<std::string> found;
  const auto try_name = [&](std::string candidate) {
    const OpDef* op = find_op(candidate);
    if (op != nullptr && (found.empty() || found.back() != candidate)) found.push_back(candidate);
  };
  for (size_t i = 0; i <= name.size(); ++i) {
    const std::string head(name.substr(0, i));
    const std::string tail(name.substr(i));
    if (!tail.empty()) try_name(head + tail.substr(1));
    if (tail.size() > 1) try_name(head + tail[1] + tail[0] + tail.substr(2));
    for (const char letter : kLetters) {
      try_name(head + letter + tail);
      if (!tail.empty()) try_name(head + letter + tail.substr(1));
    }
  }
  std::string list;
  for (const std::string& candidate : found) {
    list += list.empty() ? "did you mean " : " or ";
    list += candidate;
  }
  return list.empty() ? list : list + "?";
}

constexpr size_t kMaxAttrs = 16;

class GraphParser {
 public:
  GraphParser(std::string name, const FindOp& find_op)
      : name_(std::move(name)), find_op_(find_op) {}

  Result<Graph> parse(std::string_view text) {
    for (size_t number = 1; !text.empty(); ++number) {
      const size_t length = std::min(text.find('\n'), text.size());
      LineReader line(text.substr(0, length));
      text.remove_prefix(std::min(length + 1, text.size()));
      if (line.at_end()) continue;
      parse_line(line);
      if (line.failed()) return located(line.failure(), number);
    }
    if (!builder_) {
      Error error;
      error.what = "a graph begins with \"graph NAME\"";
      error.got = "empty text";
      return located(error, 1);
    }
    return std::move(*builder_).build();
  }

 private:
  Error located(Error error, size_t line_number) const {
    error.where = name_ + ":" + std::to_string(line_number);
    return error;
  }

  void parse_line(LineReader& line) {
    if (line.accept('%')) {
      parse_definition(line);
    } else {
      const std::string_view keyword = line.word("\"graph\", \"output\" or %name");
      if (line.failed()) return;
      if (keyword == "graph") {
        parse_header(line);
      } else if (keyword == "output") {
        parse_output(line);
      } else {
        line.fail("a line begins with \"graph\", \"output\" or %name", std::string(keyword));
      }
    }
    line.expect_end();
  }

  void parse_header(LineReader& line) {
    std::string storage;
    const std::string_view name = line.name_or_quoted(storage);
    if (builder_) line.fail("there is one graph in a text", std::string(name));
    if (!line.failed()) builder_.emplace(std::string(name));
  }

  bool begun(LineReader& line) const {
    if (!builder_) line.fail("a graph begins with \"graph NAME\"", "another line");
    return !line.failed();
  }

  void parse_output(LineReader& line) {
    if (!begun(line)) return;
    std::string name = line.quoted();
    line.expect('=');
    const Value value = operand(line);
    if (line.failed()) return;
    if (!outputs_.insert(name).second) return line.fail("output names differ", name);
    builder_->output(std::move(name), value);
  }

  void parse_definition(LineReader& line) {
    if (!begun(line)) return;
    const std::string id(line.word("a value's name"));
    line.expect('=');
    const std::string_view op = line.word("an op");
    if (line.failed()) return;
    if (static_cast<int64_t>(values_.size()) >= kMaxTextNodes) {
      return line.fail("a graph has at most " + std::to_string(kMaxTextNodes) + " nodes", "more");
    }
    const Value value = op == "input" ? parse_input(line) : parse_application(line, op);
    if (line.failed()) return;
    if (!values_.emplace(id, value).second) line.fail("values are defined once", "%" + id);
  }

  Value parse_input(LineReader& line) {
    const std::string name = line.quoted();
    line.expect(':');
    const TensorType type = line.type();
    if (!line.failed() && !inputs_.insert(name).second) {
      line.fail("input names differ", name);
    }
    return line.failed() ? Value{} : builder_->input(name, type);
  }

  Value parse_application(LineReader& line, std::string_view op_name) {
    const OpDef* op = find_op_(op_name);
    if (op == nullptr) {
      const std::string similar = similar_ops(op_name, find_op_);
      line.fail("there is no such op" + (similar.empty() ? "" : "; " + similar),
                std::string(op_name));
      return {};
    }
    std::vector<Value> operands;
    line.expect('(');
    if (!line.accept(')')) {
      do {
        operands.push_back(operand(line));
      } while (line.accept(','));
      line.expect(')');
    }
    Attrs attrs = attributes(line);
    line.expect(':');
    const TensorType stated = line.type();
    if (line.failed()) return {};
    Result<Value> value = builder_->try_apply(*op, std::move(operands), std::move(attrs));
    if (!value.ok()) {
      line.fail(value.error().where + ": " + value.error().what, value.error().got);
      return {};
    }
    if (value.value().type() != stated) {
      line.fail("the stated type is the result's, " + value.value().type().text(), stated.text());
    }
    return value.value();
  }

  Attrs attributes(LineReader& line) {
    Attrs attrs;
    if (!line.accept('{')) return attrs;
    do {
      const std::string key(line.word("an attribute"));
      line.expect('=');
      AttrValue value = line.value();
      if (line.failed()) return attrs;
      if (attrs.find(key) != nullptr) line.fail("attributes are given once", key);
      if (attrs.items().size() == kMaxAttrs) line.fail("a node has few attributes", "many");
      attrs.set(key, std::move(value));
    } while (line.accept(','));
    line.expect('}');
    return attrs;
  }

  Value operand(LineReader& line) {
    line.expect('%');
    const std::string id(line.word("a value's name"));
    if (line.failed()) return {};
    const auto at = values_.find(id);
    if (at == values_.end()) {
      line.fail("values are defined before they are used", "%" + id);
      return {};
    }
    return at->second;
  }

  std::string name_;
  const FindOp& find_op_;
  std::optional<Builder> builder_;
  std::unordered_map<std::string, Value> values_;
  std::unordered_set<std::string> inputs_, outputs_;
};

}  // namespace

Result<Graph> parse_graph(std::string_view text, const FindOp& find_op, std::string_view name) {
  return GraphParser(std::string(name), find_op).parse(text);
}

}  // namespace npu
