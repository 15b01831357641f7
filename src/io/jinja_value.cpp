// See jinja_value.h. Here: making values, truth, equality, order, containment, items and slices.
#include "io/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/unicode.h"

namespace npu::jinja {
namespace {

constexpr int kMaxDepth = 200;  // nesting of data that a template builds

double as_double(const Json& json) {
  if (json.is_boolean()) return json.get<bool>() ? 1 : 0;
  return json.get<double>();
}

bool is_numeric(const Json& json) { return json.is_number() || json.is_boolean(); }

bool both_whole(const Json& a, const Json& b) {
  return !a.is_number_float() && !b.is_number_float();
}

int64_t whole(const Json& json) {
  if (json.is_boolean()) return json.get<bool>() ? 1 : 0;
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX)
    throw TemplateError{"a number is too large", json.dump()};
  return json.get<int64_t>();
}

bool equal_json(const Json& a, const Json& b) {
  if (is_numeric(a) && is_numeric(b))
    return both_whole(a, b) ? whole(a) == whole(b) : as_double(a) == as_double(b);
  if (a.type() != b.type()) return false;
  if (a.is_array()) return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal_json);
  if (!a.is_object()) return a == b;
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.items()) {
    const auto other = b.find(key);
    if (other == b.end() || !equal_json(value, *other)) return false;
  }
  return true;
}

template <class T>
int sign(const T& a, const T& b) {
  return a < b ? -1 : b < a ? 1 : 0;
}

int compare_json(const Json& a, const Json& b) {
  if (is_numeric(a) && is_numeric(b))
    return both_whole(a, b) ? sign(whole(a), whole(b)) : sign(as_double(a), as_double(b));
  if (a.is_string() && b.is_string())  // bytes of UTF-8 sort as code points do
    return sign(a.get_ref<const std::string&>(), b.get_ref<const std::string&>());
  if (a.is_array() && b.is_array()) {
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
      if (!equal_json(a[i], b[i])) return compare_json(a[i], b[i]);
    return sign(a.size(), b.size());
  }
  throw TemplateError{"these values have no order",
                      std::string(a.type_name()) + " and " + b.type_name()};
}

// Code points of `text`, each a string.
std::vector<std::string_view> letters(std::string_view text) {
  std::vector<std::string_view> result;
  for (size_t at = 0; at < text.size();) {
    const auto bytes = static_cast<size_t>(code_point_at(text, at).bytes);
    result.push_back(text.substr(at, bytes));
    at += bytes;
  }
  return result;
}

// The byte at which code point `index` begins; the end when there are fewer.
size_t letter_offset(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index)
    at += static_cast<size_t>(code_point_at(text, at).bytes);
  return at;
}

void use_up(const Value& value) {
  if (value.form != Form::kGenerator) return;
  if (*value.consumed) throw TemplateError{"a generator is read twice", "", 0};
  *value.consumed = true;
}

}  // namespace

void Budget::charge(size_t amount) {
  if (amount >= left_)
    throw TemplateError{
        "the template does too much work",
        "",
    };
  left_ -= amount;
}

Value Value::undefined(std::string why) {
  Value value;
  value.name = std::move(why);
  return value;
}

Value Value::of(Json json, int depth) {
  if (depth > kMaxDepth) throw TemplateError{"the template nests data too deeply", ""};
  Value value;
  value.kind = Kind::kData;
  value.depth = depth;
  value.data = std::make_shared<const Json>(std::move(json));
  return value;
}

Value Value::view(const Json& json, std::shared_ptr<const Json> owner, int depth) {
  Value value;
  value.kind = Kind::kData;
  value.depth = depth;
  value.data = std::shared_ptr<const Json>(std::move(owner), &json);
  return value;
}

Value Value::list(std::vector<Value> items, Form form) {
  Json json = Json::array();
  int depth = 0;
  size_t tuples = 0;
  for (const Value& item : items) {
    if (!item.is_data() || item.form > Form::kTuple)
      throw TemplateError{"a list can't hold this", type_name(item)};
    tuples += item.form == Form::kTuple;
    depth = std::max(depth, item.depth);
    json.push_back(*item.data);
  }
  if (tuples > 0 && (tuples < items.size() || form != Form::kPlain))
    throw TemplateError{"tuples within this are not supported", ""};
  Value value = of(std::move(json), depth + 1);
  value.form = tuples > 0 ? Form::kPairs : form;
  if (form == Form::kGenerator) value.consumed = std::make_shared<bool>(false);
  return value;
}

bool Value::is_none() const { return is_data() && data->is_null(); }
bool Value::is_bool() const { return is_data() && data->is_boolean(); }
bool Value::is_int() const { return is_data() && data->is_number_integer(); }
bool Value::is_number() const { return is_data() && is_numeric(*data); }
bool Value::is_string() const { return is_data() && data->is_string(); }
bool Value::is_list() const { return is_data() && data->is_array(); }
bool Value::is_dict() const { return is_data() && data->is_object(); }
const std::string& Value::text() const { return data->get_ref<const std::string&>(); }

std::string type_name(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return "undefined";
    case Kind::kNamespace:
      return "namespace";
    case Kind::kLoop:
      return "loop";
    case Kind::kFunction:
    case Kind::kMethod:
      return "function " + value.name;
    case Kind::kData:
      break;
  }
  const Json& json = *value.data;
  if (json.is_array())
    return value.form == Form::kTuple       ? "tuple"
           : value.form == Form::kPairs     ? "list of tuples"
           : value.form == Form::kView      ? "view of a dict"
           : value.form == Form::kGenerator ? "generator"
                                            : "list";
  return json.is_null()           ? "NoneType"
         : json.is_boolean()      ? "bool"
         : json.is_string()       ? "str"
         : json.is_object()       ? "dict"
         : json.is_number_float() ? "float"
                                  : "int";
}

bool truth(const Value& value) {
  if (value.is_undefined()) return false;
  if (!value.is_data() || value.form == Form::kGenerator) return true;
  const Json& json = *value.data;
  if (json.is_null()) return false;
  if (is_numeric(json)) return as_double(json) != 0;
  return json.is_string() ? !value.text().empty() : !json.empty();
}

bool equal(const Value& a, const Value& b) {
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (!a.is_data() || !b.is_data()) return a.space != nullptr && a.space == b.space;
  for (const Form form : {Form::kTuple, Form::kPairs})
    if ((a.form == form) != (b.form == form)) return false;
  return equal_json(*a.data, *b.data);
}

int compare(const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) throw TemplateError{value->name, ""};
  if (!a.is_data() || !b.is_data())
    throw TemplateError{"these values have no order", type_name(a) + " and " + type_name(b)};
  return compare_json(*a.data, *b.data);
}

bool contains(const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (container.is_string()) {
    if (!item.is_string())
      throw TemplateError{"`in` a string needs a string at its left", type_name(item)};
    return container.text().find(item.text()) != std::string::npos;
  }
  if (container.is_dict()) {
    if (!item.is_string()) return false;
    return container.data->contains(item.text());
  }
  const std::vector<Value> items = iterate(container);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& each) { return equal(each, item); });
}

int64_t length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) return static_cast<int64_t>(utf8_length(value.text()));
  if (value.kind == Kind::kLoop) return static_cast<int64_t>(value.loop->items.size());
  if ((value.is_list() && value.form != Form::kGenerator) || value.is_dict())
    return static_cast<int64_t>(value.data->size());
  throw TemplateError{"this has no length", type_name(value)};
}

std::vector<Value> iterate(const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (value.is_list()) {
    use_up(value);
    for (const Json& item : *value.data) {
      items.push_back(Value::view(item, value.data, value.depth));
      if (value.form == Form::kPairs) items.back().form = Form::kTuple;
    }
  } else if (value.is_string()) {
    for (const std::string_view letter : letters(value.text()))
      items.push_back(Value::of(std::string(letter)));
  } else if (value.is_dict()) {
    for (const auto& [key, member] : value.data->items()) items.push_back(Value::of(key));
  } else {
    throw TemplateError{"this can't be iterated", type_name(value)};
  }
  return items;
}

int64_t to_int(const Value& value, std::string_view what) {
  if (!value.is_int() && !value.is_bool())
    throw TemplateError{std::string(what) + " must be a whole number", type_name(value)};
  return whole(*value.data);
}

Value get_item(const Value& value, const Value& key) {
  if (value.is_undefined()) throw TemplateError{value.name, ""};
  if (value.is_dict() && key.is_string()) {
    const auto found = value.data->find(key.text());
    if (found != value.data->end()) return Value::view(*found, value.data, value.depth);
  }
  if (value.is_list() && value.form > Form::kPairs)
    throw TemplateError{"this has no items by number", type_name(value)};
  if ((value.is_list() || value.is_string()) && (key.is_int() || key.is_bool())) {
    const int64_t size = length(value);
    int64_t index = to_int(key, "an index");
    if (index < 0) index += size;
    if (index >= 0 && index < size) {
      if (value.is_list()) {
        Value item =
            Value::view((*value.data)[static_cast<size_t>(index)], value.data, value.depth);
        if (value.form == Form::kPairs) item.form = Form::kTuple;
        return item;
      }
      const size_t at = letter_offset(value.text(), index);
      return Value::of(
          value.text().substr(at, static_cast<size_t>(code_point_at(value.text(), at).bytes)));
    }
  }
  return Value::undefined(type_name(value) + " has no item " + to_text(key));
}

Value get_slice(const Value& value, const int64_t* start, const int64_t* stop, int64_t step) {
  if (step == 0) throw TemplateError{"the step of a slice must not be 0", ""};
  if (!value.is_string() && !(value.is_list() && value.form <= Form::kPairs))
    throw TemplateError{"this can't be sliced", type_name(value)};
  const int64_t size = length(value);
  const auto clamp = [&](const int64_t* given, int64_t absent) {
    if (given == nullptr) return absent;
    const int64_t index = *given < 0 ? *given + size : *given;
    return step > 0 ? std::clamp<int64_t>(index, 0, size)
                    : std::clamp<int64_t>(index, -1, size - 1);
  };
  const int64_t first = clamp(start, step > 0 ? 0 : size - 1);
  const int64_t end = clamp(stop, step > 0 ? size : -1);
  if (value.is_string() && step == 1) {
    const size_t begin = letter_offset(value.text(), first);
    const std::string_view rest = std::string_view(value.text()).substr(begin);
    return Value::of(std::string(rest.substr(0, letter_offset(rest, end - first))));
  }
  std::vector<int64_t> picked;
  // A step beyond the size takes one item; bounding it keeps `i += step` from overflowing.
  const int64_t stride = std::clamp<int64_t>(step, -size - 1, size + 1);
  for (int64_t i = first; step > 0 ? i < end : i > end; i += stride) picked.push_back(i);
  if (value.is_string()) {
    const std::vector<std::string_view> all = letters(value.text());
    std::string text;
    for (const int64_t i : picked) text += all[static_cast<size_t>(i)];
    return Value::of(std::move(text));
  }
  Json list = Json::array();
  for (const int64_t i : picked) list.push_back((*value.data)[static_cast<size_t>(i)]);
  Value result = Value::of(std::move(list), value.depth);
  result.form = value.form;
  return result;
}

}  // namespace npu::jinja
