// Attributes, methods of strings and dicts, and functions; see jinja_builtins.h.
#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>

#include "io/jinja_builtins.h"
#include "io/unicode.h"

namespace npu::jinja {
namespace {

using Names = std::vector<std::string_view>;

// Everything Python's types have: a name here that is no method of ours is refused, not undefined.
const Names& python_methods(const Value& value) {
  static const Names string = {
      "capitalize",   "casefold",    "center",    "count",      "encode",       "endswith",
      "expandtabs",   "find",        "format",    "format_map", "index",        "isalnum",
      "isalpha",      "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
      "isnumeric",    "isprintable", "isspace",   "istitle",    "isupper",      "join",
      "ljust",        "lower",       "lstrip",    "maketrans",  "partition",    "removeprefix",
      "removesuffix", "replace",     "rfind",     "rindex",     "rjust",        "rpartition",
      "rsplit",       "rstrip",      "split",     "splitlines", "startswith",   "strip",
      "swapcase",     "title",       "translate", "upper",      "zfill"};
  static const Names dict = {"clear", "copy",    "fromkeys",   "get",    "items", "keys",
                             "pop",   "popitem", "setdefault", "update", "values"};
  static const Names list = {"append", "clear", "copy",   "count",   "extend", "index",
                             "insert", "pop",   "remove", "reverse", "sort"};
  static const Names none;
  if (value.is_string()) return string;
  if (value.is_dict()) return dict;
  return value.is_list() ? list : none;
}

bool one_of(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value loop_fact(const Loop& loop, const std::string& name) {
  const auto count = static_cast<int64_t>(loop.items.size());
  const auto index = static_cast<int64_t>(loop.index);
  if (name == "index") return Value::of(index + 1);
  if (name == "index0") return Value::of(index);
  if (name == "revindex") return Value::of(count - index);
  if (name == "revindex0") return Value::of(count - index - 1);
  if (name == "first") return Value::of(index == 0);
  if (name == "last") return Value::of(index + 1 == count);
  if (name == "length") return Value::of(count);
  if (name == "depth") return Value::of(1);  // only recursive loops have more
  if (name == "depth0") return Value::of(0);
  if (name == "previtem")
    return index == 0 ? Value::undefined("there is no previous item") : loop.items[loop.index - 1];
  if (name == "nextitem")
    return index + 1 == count ? Value::undefined("there is no next item")
                              : loop.items[loop.index + 1];
  throw TemplateError{"loop." + name + " is not supported", ""};
}

std::string text_of(const Arguments& arguments, size_t place, std::string_view callee) {
  const Value* value = arguments.find(place, "");
  if (value == nullptr || !value->is_string())
    throw TemplateError{std::string(callee) + " needs a string",
                        value == nullptr ? "nothing" : type_name(*value)};
  return value->text();
}

Value strip(const std::string& text, const std::string& method, const Arguments& arguments) {
  arguments.check(method, 1);
  const bool left = method != "rstrip", right = method != "lstrip";
  const Value* given = arguments.find(0, "");
  if (given == nullptr || given->is_none())
    return Value::of(std::string(strip_space(text, left, right)));
  const std::string characters = text_of(arguments, 0, method);
  // A code point is in the set when its bytes are in the string: UTF-8 has no false matches.
  size_t begin = 0, end = text.size();
  const auto in_set = [&](size_t at, size_t bytes) {
    return characters.find(text.substr(at, bytes)) != std::string::npos;
  };
  while (left && begin < end) {
    const auto bytes = static_cast<size_t>(code_point_at(text, begin).bytes);
    if (!in_set(begin, bytes)) break;
    begin += bytes;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(text[last]) >> 6) == 2) --last;
    if (!in_set(last, end - last)) break;
    end = last;
  }
  return Value::of(text.substr(begin, end - begin));
}

Value split(const std::string& text, const Arguments& arguments) {
  arguments.check("split", 2, {"sep", "maxsplit"});
  const Value* separator = arguments.find(0, "sep");
  const Value* limit = arguments.find(1, "maxsplit");
  int64_t left = limit == nullptr ? -1 : to_int(*limit, "maxsplit");
  Json parts = Json::array();
  if (separator == nullptr || separator->is_none()) {
    std::string_view rest = strip_space(text, true, false);
    while (!rest.empty()) {
      size_t end = 0;
      while (end < rest.size() && !is_python_space(code_point_at(rest, end).value))
        end += static_cast<size_t>(code_point_at(rest, end).bytes);
      if (left-- == 0) end = rest.size();  // what is left keeps its white space
      parts.push_back(std::string(rest.substr(0, end)));
      rest = strip_space(rest.substr(end), true, false);
    }
    return Value::of(std::move(parts), 2);
  }
  if (!separator->is_string() || separator->text().empty())
    throw TemplateError{"split needs a separator that is not empty", type_name(*separator)};
  const std::string& between = separator->text();
  size_t begin = 0;
  while (left-- != 0) {
    const size_t end = text.find(between, begin);
    if (end == std::string::npos) break;
    parts.push_back(text.substr(begin, end - begin));
    begin = end + between.size();
  }
  parts.push_back(text.substr(begin));
  return Value::of(std::move(parts), 2);
}

// startswith, endswith: of a string or of any of a tuple.
Value has_affix(const std::string& text, const std::string& method, const Arguments& arguments) {
  arguments.check(method, 1);
  const Value* affix = arguments.find(0, "");
  const auto matches = [&](const Value& value) {
    if (!value.is_string()) throw TemplateError{method + " needs a string", type_name(value)};
    return method == "startswith" ? text.starts_with(value.text()) : text.ends_with(value.text());
  };
  if (affix == nullptr) throw TemplateError{method + " needs a string", "nothing"};
  if (!affix->is_list() || affix->form != Form::kTuple) return Value::of(matches(*affix));
  const std::vector<Value> all = iterate(*affix);
  return Value::of(std::any_of(all.begin(), all.end(), matches));
}

Value replace(const std::string& text, const Arguments& arguments) {
  arguments.check("replace", 3);
  const std::string old = text_of(arguments, 0, "replace"), now = text_of(arguments, 1, "replace");
  const Value* limit = arguments.find(2, "");
  int64_t left = limit == nullptr || limit->is_none() ? -1 : to_int(*limit, "replace's count");
  if (old.empty()) throw TemplateError{"replace of an empty string is not supported", ""};
  constexpr size_t kLargest = size_t{64} << 20;
  std::string result;
  size_t begin = 0;
  while (left-- != 0) {
    const size_t end = text.find(old, begin);
    if (end == std::string::npos) break;
    result.append(text, begin, end - begin).append(now);
    begin = end + old.size();
    if (result.size() > kLargest) throw TemplateError{"a string grows too large", ""};
  }
  return Value::of(result.append(text, begin));
}

// upper, lower, capitalize, title. Other alphabets have rules of their own and are refused.
Value change_case(const std::string& text, const std::string& method, const Arguments& arguments) {
  arguments.check(method, 0);
  std::string result;
  bool starts = true;  // of a word for title, of the text for capitalize
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (has_case_beyond_ascii(c.value))
      throw TemplateError{"`" + method + "` of letters beyond ASCII is not supported", text};
    const char letter = text[at];
    const bool is_upper = letter >= 'A' && letter <= 'Z', is_lower = letter >= 'a' && letter <= 'z';
    const bool to_upper = method == "upper" || (method != "lower" && starts);
    if (is_lower && to_upper)
      result += static_cast<char>(letter - 32);
    else if (is_upper && !to_upper)
      result += static_cast<char>(letter + 32);
    else
      result += text.substr(at, static_cast<size_t>(c.bytes));
    starts = method == "title" && !is_upper && !is_lower;
    at += static_cast<size_t>(c.bytes);
  }
  return Value::of(std::move(result));
}

Value join_method(const std::string& between, const Arguments& arguments) {
  arguments.check("join", 1);
  std::string text;
  bool first = true;
  if (arguments.values.empty()) throw TemplateError{"join needs a list", "nothing"};
  for (const Value& item : iterate(arguments.values[0])) {
    if (!item.is_string()) throw TemplateError{"join needs strings", type_name(item)};
    if (!std::exchange(first, false)) text += between;
    text += item.text();
  }
  return Value::of(std::move(text));
}

Value call_string(const std::string& text, const std::string& name, const Arguments& arguments) {
  if (name == "strip" || name == "lstrip" || name == "rstrip") return strip(text, name, arguments);
  if (name == "split") return split(text, arguments);
  if (name == "startswith" || name == "endswith") return has_affix(text, name, arguments);
  if (name == "replace") return replace(text, arguments);
  if (name == "upper" || name == "lower" || name == "capitalize" || name == "title")
    return change_case(text, name, arguments);
  if (name == "join") return join_method(text, arguments);
  if (name == "find") {
    arguments.check(name, 1);
    const size_t at = text.find(text_of(arguments, 0, name));
    return Value::of(at == std::string::npos
                         ? int64_t{-1}
                         : static_cast<int64_t>(utf8_length(text.substr(0, at))));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    arguments.check(name, 1);
    const std::string affix = text_of(arguments, 0, name);
    if (name == "removeprefix" && text.starts_with(affix))
      return Value::of(text.substr(affix.size()));
    if (name == "removesuffix" && text.ends_with(affix))
      return Value::of(text.substr(0, text.size() - affix.size()));
    return Value::of(text);
  }
  throw TemplateError{"the method `" + name + "` of a string is not supported", ""};
}

Value call_dict(const Value& self, const std::string& name, const Arguments& arguments) {
  const Json& dict = *self.data;
  if (name == "get") {
    arguments.check(name, 2, {"default"});
    const std::string key = text_of(arguments, 0, name);
    const auto found = dict.find(key);
    if (found != dict.end()) return Value::view(*found, self.data, self.depth);
    const Value* otherwise = arguments.find(1, "default");
    return otherwise == nullptr ? Value::of(nullptr) : *otherwise;
  }
  if (name != "items" && name != "keys" && name != "values")
    throw TemplateError{"the method `" + name + "` of a dict is not supported", ""};
  arguments.check(name, 0);
  Json list = Json::array();
  for (const auto& [key, value] : dict.items()) {
    if (name == "items")
      list.push_back(Json::array({key, value}));
    else
      list.push_back(name == "keys" ? Json(key) : value);
  }
  Value result = Value::of(std::move(list), self.depth + 2);
  result.form = name == "items" ? Form::kPairs : Form::kView;
  return result;
}

Value make_namespace(const Arguments& arguments) {
  Value value;
  value.kind = Kind::kNamespace;
  value.space = std::make_shared<Namespace>();
  for (const Value& dict : arguments.values) {
    if (!dict.is_dict()) throw TemplateError{"namespace needs names or a dict", type_name(dict)};
    for (const auto& [key, member] : dict.data->items())
      value.space->attributes[key] = Value::view(member, dict.data, dict.depth);
  }
  for (const auto& [name, member] : arguments.named) value.space->attributes[name] = member;
  return value;
}

Value make_range(const Arguments& arguments) {
  constexpr int64_t kMost = 100000;  // as Jinja's sandbox
  arguments.check("range", 3);
  if (arguments.values.empty()) throw TemplateError{"range needs a number", "nothing"};
  int64_t parts[3] = {0, 0, 1};
  const size_t given = arguments.values.size();
  if (given == 1)
    parts[1] = to_int(arguments.values[0], "range's end");
  else
    for (size_t i = 0; i < given; ++i) parts[i] = to_int(arguments.values[i], "range's argument");
  const auto [start, stop, step] = std::array{parts[0], parts[1], parts[2]};
  if (step == 0) throw TemplateError{"the step of a range must not be 0", ""};
  Json list = Json::array();
  for (__int128 i = start; step > 0 ? i < stop : i > stop; i += step) {
    if (static_cast<int64_t>(list.size()) == kMost)
      throw TemplateError{"a range has more than " + std::to_string(kMost) + " items", ""};
    list.push_back(static_cast<int64_t>(i));
  }
  return Value::of(std::move(list), 2);
}

std::string padded(int64_t number, size_t width) {
  std::string text = std::to_string(number);
  return text.size() < width ? std::string(width - text.size(), '0') + text : text;
}

// datetime.strftime for the fields that templates use. With a date given, the time is midnight.
Value strftime_now(const Arguments& arguments, const std::string& date) {
  arguments.check("strftime_now", 1);
  const std::string format = text_of(arguments, 0, "strftime_now");
  std::tm time{};
  if (date.empty()) {
    const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    localtime_r(&now, &time);
  } else {
    time.tm_year = std::stoi(date.substr(0, 4)) - 1900;
    time.tm_mon = std::stoi(date.substr(5, 2)) - 1;
    time.tm_mday = std::stoi(date.substr(8, 2));
    const std::chrono::sys_days day = std::chrono::year(time.tm_year + 1900) /
                                      std::chrono::month(static_cast<unsigned>(time.tm_mon + 1)) /
                                      std::chrono::day(static_cast<unsigned>(time.tm_mday));
    time.tm_wday = static_cast<int>(std::chrono::weekday(day).c_encoding());
  }
  constexpr std::array<std::string_view, 12> kMonths = {
      "January", "February", "March",     "April",   "May",      "June",
      "July",    "August",   "September", "October", "November", "December"};
  constexpr std::array<std::string_view, 7> kDays = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                     "Thursday", "Friday", "Saturday"};
  const std::string month(kMonths[static_cast<size_t>(time.tm_mon)]);
  const std::string weekday(kDays[static_cast<size_t>(time.tm_wday)]);
  std::string text;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      text += format[i];
      continue;
    }
    const char field = format[++i];
    if (field == 'Y')
      text += padded(time.tm_year + 1900, 4);
    else if (field == 'm')
      text += padded(time.tm_mon + 1, 2);
    else if (field == 'd')
      text += padded(time.tm_mday, 2);
    else if (field == 'B')
      text += month;
    else if (field == 'b')
      text += month.substr(0, 3);
    else if (field == 'A')
      text += weekday;
    else if (field == 'a')
      text += weekday.substr(0, 3);
    else if (field == 'H')
      text += padded(time.tm_hour, 2);
    else if (field == 'M')
      text += padded(time.tm_min, 2);
    else if (field == 'S')
      text += padded(time.tm_sec, 2);
    else if (field == '%')
      text += '%';
    else
      throw TemplateError{"this field of strftime_now is not supported", std::string("%") + field};
  }
  return Value::of(std::move(text));
}

}  // namespace

const Value* Arguments::find(size_t place, std::string_view name) const {
  for (const auto& [given, value] : named)
    if (!name.empty() && given == name) return &value;
  return place < values.size() ? &values[place] : nullptr;
}

void Arguments::check(std::string_view callee, size_t most,
                      const std::vector<std::string_view>& names) const {
  if (values.size() > most)
    throw TemplateError{"`" + std::string(callee) + "` takes fewer arguments",
                        std::to_string(values.size())};
  for (const auto& [name, value] : named)
    if (!one_of(names, name))
      throw TemplateError{"an argument of `" + std::string(callee) + "` is not supported", name};
}

Value get_attribute(const Value& value, const std::string& name) {
  if (value.is_undefined()) throw TemplateError{value.name, ""};
  if (name.starts_with("__")) throw TemplateError{"this attribute is not safe", name};
  if (value.kind == Kind::kNamespace) {
    const auto found = value.space->attributes.find(name);
    if (found != value.space->attributes.end()) return found->second;
    return Value::undefined("the namespace has no `" + name + "`");
  }
  if (value.kind == Kind::kLoop) return loop_fact(*value.loop, name);
  if (one_of(python_methods(value), name)) {
    Value method;
    method.kind = Kind::kMethod;
    method.name = name;
    method.self = std::make_shared<const Value>(value);
    return method;
  }
  if (value.is_dict()) return get_item(value, Value::of(name));
  return Value::undefined(type_name(value) + " has no attribute `" + name + "`");
}

Value call_method(const Value& self, const std::string& name, const Arguments& arguments) {
  if (self.is_string()) return call_string(self.text(), name, arguments);
  if (self.is_dict()) return call_dict(self, name, arguments);
  throw TemplateError{"the method `" + name + "` of a " + type_name(self) + " is not supported",
                      ""};
}

bool is_function(std::string_view name) {
  return one_of({"raise_exception", "strftime_now", "namespace", "range", "dict"}, name);
}

Value call_function(std::string_view name, const Arguments& arguments, const std::string& date) {
  if (name == "raise_exception") {
    arguments.check(name, 1);
    throw TemplateError{"the template refuses its input",
                        arguments.values.empty() ? "" : to_text(arguments.values[0])};
  }
  if (name == "strftime_now") return strftime_now(arguments, date);
  if (name == "namespace") return make_namespace(arguments);
  if (name == "range") return make_range(arguments);
  arguments.check(name, 0);  // dict(): with arguments it would be a list of pairs or names
  return Value::of(Json::object());
}

}  // namespace npu::jinja
