// Values of the template language as text, as Python's str(), repr() and json.dumps() write them,
// and arithmetic.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/jinja_value.h"
#include "io/unicode.h"

namespace npu::jinja {
namespace {

std::string hex(uint32_t value, int digits) {
  std::string text;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4)
    text += "0123456789abcdef"[(value >> shift) & 15];
  return text;
}

// The shortest text that reads back as `value`, in Python's choice of plain or exponent form.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto scientific =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string text(buffer, scientific.ptr);
  const int exponent = std::stoi(text.substr(text.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return text;
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string plain(buffer, fixed.ptr);
  if (plain.find('.') == std::string::npos) plain += ".0";
  return plain;
}

std::string string_repr(std::string_view text) {
  const bool double_quotes =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.value == '\\' || c.value == static_cast<char32_t>(quote))
      out += {'\\', static_cast<char>(c.value)};
    else if (c.value == '\n')
      out += "\\n";
    else if (c.value == '\r')
      out += "\\r";
    else if (c.value == '\t')
      out += "\\t";
    else if (is_python_printable(c.value))
      out += text.substr(at, static_cast<size_t>(c.bytes));
    else if (c.value < 0x100)
      out += "\\x" + hex(c.value, 2);
    else if (c.value < 0x10000)
      out += "\\u" + hex(c.value, 4);
    else
      out += "\\U" + hex(c.value, 8);
    at += static_cast<size_t>(c.bytes);
  }
  return out + quote;
}

std::string repr(const Json& json) {
  if (json.is_null()) return "None";
  if (json.is_boolean()) return json.get<bool>() ? "True" : "False";
  if (json.is_string()) return string_repr(json.get_ref<const std::string&>());
  if (json.is_number_float()) return float_text(json.get<double>());
  if (json.is_number()) return json.dump();
  std::string out(1, json.is_array() ? '[' : '{');
  bool first = true;
  for (const auto& [key, value] : json.items()) {
    if (!std::exchange(first, false)) out += ", ";
    if (json.is_object()) out += string_repr(key) + ": ";
    out += repr(value);
  }
  return out + (json.is_array() ? ']' : '}');
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (byte < 0x20)
          out += "\\u" + hex(byte, 4);
        else
          out += c;
    }
  }
  return out + '"';
}

std::string json_scalar(const Json& json) {
  if (json.is_string()) return json_string(json.get_ref<const std::string&>());
  if (!json.is_number_float()) return json.dump();
  const double value = json.get<double>();
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return float_text(value);
}

void write_json(const Json& json, int indent, bool sort_keys, int level, std::string& out) {
  if (!json.is_structured()) {
    out += json_scalar(json);
    return;
  }
  const char open = json.is_array() ? '[' : '{', close = json.is_array() ? ']' : '}';
  out += open;
  if (json.empty()) {
    out += close;
    return;
  }
  std::vector<std::pair<std::string, const Json*>> members;
  for (const auto& [key, value] : json.items()) members.emplace_back(key, &value);
  if (sort_keys && json.is_object())
    std::sort(members.begin(), members.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
  const auto new_line = [&](int at_level) {
    if (indent >= 0) out += "\n" + std::string(static_cast<size_t>(indent * at_level), ' ');
  };
  bool first = true;
  for (const auto& [key, value] : members) {
    if (!std::exchange(first, false)) out += indent >= 0 ? "," : ", ";
    new_line(level + 1);
    if (json.is_object()) out += json_string(key) + ": ";
    write_json(*value, indent, sort_keys, level + 1, out);
  }
  new_line(level);
  out += close;
}

[[noreturn]] void no_operator(std::string_view op, const Value& a, const Value& b) {
  throw TemplateError{"`" + std::string(op) + "` does not work on these values",
                      type_name(a) + " and " + type_name(b)};
}

// Python rounds quotients down and gives remainders the divisor's sign.
Value whole_arithmetic(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else {
    if (b == 0) throw TemplateError{"division by zero", ""};
    if (op == "/") return Value::of(static_cast<double>(a) / static_cast<double>(b));
    overflow = a == INT64_MIN && b == -1;
    if (!overflow) {
      const int64_t remainder = a % b;
      const bool down = remainder != 0 && (remainder < 0) != (b < 0);
      result = op == "%" ? (down ? remainder + b : remainder) : a / b - (down ? 1 : 0);
    }
  }
  if (overflow) throw TemplateError{"a number is too large", ""};
  return Value::of(result);
}

Value float_arithmetic(std::string_view op, double a, double b) {
  if (op == "+") return Value::of(a + b);
  if (op == "-") return Value::of(a - b);
  if (op == "*") return Value::of(a * b);
  if (b == 0) throw TemplateError{"division by zero", ""};
  if (op == "/") return Value::of(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (op == "%") return Value::of(remainder);
  return Value::of(std::floor((a - remainder) / b + 0.5));
}

Value repeat(const Value& value, int64_t times) {
  constexpr int64_t kMost = 1 << 24;
  const int64_t count = std::max<int64_t>(times, 0);
  const int64_t size = value.is_string() ? static_cast<int64_t>(value.text().size())
                                         : static_cast<int64_t>(value.data->size());
  if (size > 0 && count > kMost / size) throw TemplateError{"the template repeats too much", ""};
  if (value.is_string()) {
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += value.text();
    return Value::of(std::move(text));
  }
  Json list = Json::array();
  for (int64_t i = 0; i < count; ++i)
    for (const Json& item : *value.data) list.push_back(item);
  return Value::of(std::move(list), value.depth);
}

}  // namespace

std::string to_text(const Value& value) {
  if (value.is_undefined()) return "";
  if (value.is_string()) return value.text();
  if (!value.is_data() || value.form != Form::kPlain)
    throw TemplateError{"this can't be printed", type_name(value)};
  return repr(*value.data);
}

std::string to_json_text(const Json& json, int indent, bool sort_keys) {
  std::string out;
  write_json(json, indent, sort_keys, 0, out);
  return out;
}

Value arithmetic(std::string_view op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) throw TemplateError{value->name, ""};
  if (a.is_number() && b.is_number()) {
    if (!a.data->is_number_float() && !b.data->is_number_float())
      return whole_arithmetic(op, to_int(a, "a number"), to_int(b, "a number"));
    const auto real = [](const Value& value) {
      return value.is_bool() ? (truth(value) ? 1.0 : 0.0) : value.data->get<double>();
    };
    return float_arithmetic(op, real(a), real(b));
  }
  if (op == "+" && a.is_string() && b.is_string()) return Value::of(a.text() + b.text());
  const bool lists = a.is_list() && b.is_list() && a.form == b.form && a.form <= Form::kTuple;
  if (op == "+" && lists) {
    Json list = *a.data;
    for (const Json& item : *b.data) list.push_back(item);
    Value result = Value::of(std::move(list), std::max(a.depth, b.depth));
    result.form = a.form;
    return result;
  }
  const auto sequence = [](const Value& value) {
    return value.is_string() || (value.is_list() && value.form == Form::kPlain);
  };
  if (op == "*" && sequence(a) && b.is_number()) return repeat(a, to_int(b, "a count"));
  if (op == "*" && sequence(b) && a.is_number()) return repeat(b, to_int(a, "a count"));
  no_operator(op, a, b);
}

}  // namespace npu::jinja
