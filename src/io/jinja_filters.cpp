// Filters and tests; see jinja_builtins.h. What an argument means is as in Jinja 3.1.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/jinja_builtins.h"
#include "io/unicode.h"

namespace npu::jinja {
namespace {

// As a string, and only a string.
std::string string_of(const Value& value) { return to_text(value); }

// obj.a.b of `map(attribute="a.b")`: items first, as Jinja's make_attrgetter does.
Value attribute_path(const Value& value, const std::string& path) {
  Value current = value;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                     [](char c) { return c >= '0' && c <= '9'; });
    int64_t index = 0;
    if (number) std::from_chars(part.data(), part.data() + part.size(), index);
    Value item = get_item(current, number ? Value::of(index) : Value::of(part));
    current = item.is_undefined() ? get_attribute(current, part) : item;
    begin = end + 1;
  }
  return current;
}

const std::string& text_argument(const Value* value, std::string_view what) {
  if (value == nullptr || !value->is_string())
    throw TemplateError{std::string(what) + " must be a string",
                        value == nullptr ? "nothing" : type_name(*value)};
  return value->text();
}

Arguments rest_of(const Arguments& arguments, size_t from) {
  Arguments rest;
  for (size_t i = from; i < arguments.values.size(); ++i)
    rest.values.push_back(arguments.values[i]);
  return rest;
}

// select, reject, selectattr, rejectattr.
Value select(std::string_view name, const Value& input, const Arguments& arguments) {
  if (!arguments.named.empty()) throw TemplateError{"named arguments are not supported here", ""};
  const bool by_attribute = name.ends_with("attr");
  const bool wanted = name.starts_with("select");
  std::string attribute;
  if (by_attribute)
    attribute = text_argument(arguments.find(0, ""), "the attribute of " + std::string(name));
  const size_t test_place = by_attribute ? 1 : 0;
  const Value* test = arguments.find(test_place, "");
  std::string test_name;
  if (test != nullptr) {
    test_name = text_argument(test, "the test of " + std::string(name));
    if (!is_test(test_name)) throw TemplateError{"this test is not supported", test_name};
  }
  const Arguments rest = rest_of(arguments, test_place + 1);
  std::vector<Value> kept;
  for (const Value& item : iterate(input)) {
    const Value subject = by_attribute ? attribute_path(item, attribute) : item;
    const bool holds = test == nullptr ? truth(subject) : apply_test(test_name, subject, rest);
    if (holds == wanted) kept.push_back(item);
  }
  return Value::list(std::move(kept), Form::kGenerator);
}

Value map_filter(const Value& input, const Arguments& arguments) {
  std::vector<Value> mapped;
  if (arguments.values.empty()) {
    arguments.check("map", 0, {"attribute", "default"});
    const std::string& attribute = text_argument(arguments.find(0, "attribute"), "map's attribute");
    const Value* absent = arguments.find(0, "default");
    for (const Value& item : iterate(input)) {
      Value value = attribute_path(item, attribute);
      mapped.push_back(value.is_undefined() && absent != nullptr ? *absent : value);
    }
  } else {
    const std::string& filter = text_argument(arguments.find(0, ""), "map's filter");
    if (!is_filter(filter)) throw TemplateError{"this filter is not supported", filter};
    Arguments rest = rest_of(arguments, 1);
    rest.named = arguments.named;
    for (const Value& item : iterate(input)) mapped.push_back(apply_filter(filter, item, rest));
  }
  return Value::list(std::move(mapped), Form::kGenerator);
}

Value join(const Value& input, const Arguments& arguments) {
  arguments.check("join", 2, {"d", "attribute"});
  const Value* between = arguments.find(0, "d");
  const Value* attribute = arguments.find(1, "attribute");
  std::string text;
  bool first = true;
  for (const Value& item : iterate(input)) {
    if (!std::exchange(first, false) && between != nullptr) text += string_of(*between);
    text += string_of(attribute == nullptr
                          ? item
                          : attribute_path(item, text_argument(attribute, "join's attribute")));
  }
  return Value::of(std::move(text));
}

Value to_json_filter(const Value& input, const Arguments& arguments) {
  arguments.check("tojson", 2, {"ensure_ascii", "indent", "sort_keys"});
  const Value* ascii = arguments.find(0, "ensure_ascii");
  if (ascii != nullptr && truth(*ascii))
    throw TemplateError{"tojson(ensure_ascii=true) is not supported", ""};
  const Value* indent = arguments.find(1, "indent");
  const Value* sorted = arguments.find(9, "sort_keys");
  if (!input.is_data() || input.form > Form::kTuple)
    throw TemplateError{"this can't be written as JSON", type_name(input)};
  const bool spread = indent != nullptr && !indent->is_none();
  const int64_t spaces = spread ? to_int(*indent, "tojson's indent") : -1;
  if (spread && (spaces < 0 || spaces > 16))
    throw TemplateError{"tojson's indent must be from 0 to 16", std::to_string(spaces)};
  return Value::of(
      to_json_text(*input.data, static_cast<int>(spaces), sorted != nullptr && truth(*sorted)));
}

Value items_filter(const Value& input) {
  if (input.is_undefined()) return Value::list({}, Form::kGenerator);
  if (!input.is_dict()) throw TemplateError{"`items` needs a dict", type_name(input)};
  return call_method(input, "items", {});
}

Value default_filter(const Value& input, const Arguments& arguments) {
  arguments.check("default", 2, {"default_value", "boolean"});
  const Value* otherwise = arguments.find(0, "default_value");
  const Value* falsy_too = arguments.find(1, "boolean");
  const bool replace =
      input.is_undefined() || (falsy_too != nullptr && truth(*falsy_too) && !truth(input));
  if (!replace) return input;
  return otherwise == nullptr ? Value::of("") : *otherwise;
}

Value first_or_last(std::string_view name, const Value& input) {
  if (name == "last" && input.is_list() && input.form == Form::kGenerator)
    throw TemplateError{"`last` can't read a generator", ""};
  const std::vector<Value> items = iterate(input);
  if (items.empty())
    return Value::undefined("no " + std::string(name) + " item, the list is empty");
  return name == "first" ? items.front() : items.back();
}

Value reverse(const Value& input) {
  if (input.is_string()) return get_slice(input, nullptr, nullptr, -1);
  std::vector<Value> items = iterate(input);
  std::reverse(items.begin(), items.end());
  return Value::list(std::move(items), Form::kGenerator);
}

Value int_filter(const Value& input, const Arguments& arguments) {
  arguments.check("int", 1, {"default"});
  const Value* otherwise = arguments.find(0, "default");
  const Value fallback = otherwise == nullptr ? Value::of(0) : *otherwise;
  if (input.is_int() || input.is_bool()) return Value::of(to_int(input, "a number"));
  if (input.is_number()) {
    const double value = std::trunc(input.data->get<double>());
    if (!(std::abs(value) < 9e18)) throw TemplateError{"a number is too large", ""};
    return Value::of(static_cast<int64_t>(value));
  }
  if (!input.is_string()) return fallback;
  std::string_view digits = strip_space(input.text());
  if (digits.starts_with('+')) digits.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error == std::errc() && end == digits.data() + digits.size()) return Value::of(value);
  const bool other_number = std::any_of(digits.begin(), digits.end(),
                                        [](char c) { return (c >= '0' && c <= '9') || c < 0; });
  if (other_number) throw TemplateError{"`int` of this string is not supported", input.text()};
  return fallback;
}

// Methods of strings that are filters, too.
constexpr std::array<std::string_view, 4> kStringFilters = {"upper", "lower", "capitalize",
                                                            "replace"};

// Jinja's own title: words are what stands between blanks, dashes and opening brackets.
Value title(const Value& input) {
  const std::string text = string_of(input);
  std::string result;
  bool starts = true;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (has_case_beyond_ascii(c.value))
      throw TemplateError{"`title` of letters beyond ASCII is not supported", text};
    const char letter = text[at];
    if (c.bytes > 1)
      result += text.substr(at, static_cast<size_t>(c.bytes));
    else if (starts && letter >= 'a' && letter <= 'z')
      result += static_cast<char>(letter - 32);
    else if (!starts && letter >= 'A' && letter <= 'Z')
      result += static_cast<char>(letter + 32);
    else
      result += letter;
    starts = is_python_space(c.value) ||
             std::string_view("-({[<").find(letter) != std::string_view::npos;
    at += static_cast<size_t>(c.bytes);
  }
  return Value::of(std::move(result));
}

bool is_even(const Value& value) { return to_int(value, "the number") % 2 == 0; }

bool compare_test(std::string_view name, const Value& a, const Value& b) {
  if (name == "eq" || name == "equalto") return equal(a, b);
  if (name == "ne") return !equal(a, b);
  if (name == "in") return contains(b, a);
  const int order = compare(a, b);
  if (name == "lt" || name == "lessthan") return order < 0;
  if (name == "le") return order <= 0;
  if (name == "gt" || name == "greaterthan") return order > 0;
  return order >= 0;  // ge
}

constexpr std::array<std::string_view, 20> kFilters = {
    "trim",   "length",     "count",      "tojson",  "items", "list", "string",
    "first",  "last",       "default",    "d",       "join",  "map",  "select",
    "reject", "selectattr", "rejectattr", "reverse", "int",   "title"};
constexpr std::array<std::string_view, 15> kPlainTests = {
    "defined", "undefined", "none",    "string", "mapping", "iterable", "sequence", "number",
    "integer", "float",     "boolean", "true",   "false",   "odd",      "even"};
constexpr std::array<std::string_view, 10> kComparingTests = {
    "eq", "equalto", "ne", "in", "lt", "lessthan", "le", "gt", "greaterthan", "ge"};

template <size_t N>
bool one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool is_filter(std::string_view name) {
  return one_of(kFilters, name) || one_of(kStringFilters, name);
}

Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments) {
  if (name == "default" || name == "d") return default_filter(input, arguments);
  if (name == "join") return join(input, arguments);
  if (name == "map") return map_filter(input, arguments);
  if (name == "tojson") return to_json_filter(input, arguments);
  if (name == "int") return int_filter(input, arguments);
  if (name == "trim") {
    arguments.check(name, 1, {"chars"});
    Arguments plain;
    if (const Value* chars = arguments.find(0, "chars")) plain.values.push_back(*chars);
    return call_method(Value::of(string_of(input)), "strip", plain);
  }
  if (one_of(kStringFilters, name))
    return call_method(Value::of(string_of(input)), std::string(name), arguments);
  if (name.starts_with("select") || name.starts_with("reject"))
    return select(name, input, arguments);
  arguments.check(name, 0);
  if (name == "length" || name == "count") return Value::of(length(input));
  if (name == "items") return items_filter(input);
  if (name == "list") return Value::list(iterate(input));
  if (name == "string") return Value::of(string_of(input));
  if (name == "reverse") return reverse(input);
  if (name == "title") return title(input);
  return first_or_last(name, input);
}

bool is_test(std::string_view name) {
  return one_of(kPlainTests, name) || one_of(kComparingTests, name);
}

bool apply_test(std::string_view name, const Value& input, const Arguments& arguments) {
  const bool comparing = one_of(kComparingTests, name);
  arguments.check(name, comparing ? 1 : 0);
  if (comparing) {
    if (arguments.values.empty())
      throw TemplateError{"the test `" + std::string(name) + "` needs a value", ""};
    return compare_test(name, input, arguments.values[0]);
  }
  if (name == "defined") return !input.is_undefined();
  if (name == "undefined") return input.is_undefined();
  if (name == "none") return input.is_none();
  if (name == "string") return input.is_string();
  if (name == "mapping") return input.is_dict();
  if (name == "number") return input.is_number();
  if (name == "integer") return input.is_int();
  if (name == "float") return input.is_number() && !input.is_int() && !input.is_bool();
  if (name == "boolean") return input.is_bool();
  if (name == "true") return input.is_bool() && truth(input);
  if (name == "false") return input.is_bool() && !truth(input);
  if (name == "odd") return !is_even(input);
  if (name == "even") return is_even(input);
  // An undefined value has both protocols in Jinja.
  const bool sized = input.is_undefined() || input.is_string() || input.is_dict();
  if (name == "iterable") return sized || input.is_list() || input.kind == Kind::kLoop;
  if (name == "sequence") return sized || (input.is_list() && input.form <= Form::kPairs);
  throw TemplateError{"this test is not supported", std::string(name)};
}

}  // namespace npu::jinja
