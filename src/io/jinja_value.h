// Values of the template language: JSON, plus what only a template has (undefined, namespaces,
// loops, functions), with the meaning that Python gives to operators on them. Private to src/io.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace npu::jinja {

// What stops a template; its line is filled in where it is known. Never leaves src/io.
struct TemplateError {
  std::string what;
  std::string got;
  int line = 0;
};

// Bounds what a template may do, whatever it is: each step, and each byte of what it makes, counts.
class Budget {
 public:
  explicit Budget(size_t amount) : left_(amount) {}
  // Throws TemplateError when used up.
  void charge(size_t amount);

 private:
  size_t left_;
};

enum class Kind { kUndefined, kData, kNamespace, kLoop, kFunction, kMethod };
// What a list is to Python, which prints all but the plain one otherwise, gives no items of views
// and generators by number, and reads a generator once. kPairs is a list whose items are tuples.
enum class Form { kPlain, kTuple, kPairs, kView, kGenerator };

struct Namespace;
struct Loop;

struct Value {
  Kind kind = Kind::kUndefined;
  Form form = Form::kPlain;
  int depth = 1;  // at least the nesting of `data`
  std::shared_ptr<const Json> data;
  std::shared_ptr<Namespace> space;
  std::shared_ptr<const Loop> loop;
  std::shared_ptr<bool> consumed;     // of a generator
  std::shared_ptr<const Value> self;  // of a method
  std::string name;                   // of a function or method; why a value is undefined

  static Value undefined(std::string why);
  static Value of(Json json, int depth = 1);
  static Value view(const Json& json, std::shared_ptr<const Json> owner, int depth);
  // Items must be data; a plain list of tuples only becomes kPairs.
  static Value list(std::vector<Value> items, Form form = Form::kPlain);

  bool is_data() const { return kind == Kind::kData; }
  bool is_undefined() const { return kind == Kind::kUndefined; }
  bool is_none() const;
  bool is_bool() const;
  bool is_int() const;  // bool is not
  bool is_number() const;
  bool is_string() const;
  bool is_list() const;
  bool is_dict() const;
  const std::string& text() const;  // of a string
};

struct Namespace {
  std::map<std::string, Value> attributes;
};

struct Loop {
  std::vector<Value> items;
  size_t index = 0;
};

std::string type_name(const Value& value);  // as Python names it

bool truth(const Value& value);
std::string to_text(const Value& value);  // str()
bool equal(const Value& a, const Value& b);
// Below, at or above zero; values that have no order throw.
int compare(const Value& a, const Value& b);
bool contains(const Value& container, const Value& item);
int64_t length(const Value& value);
std::vector<Value> iterate(const Value& value);
int64_t to_int(const Value& value, std::string_view what);  // throws unless a whole number

// json.dumps(value, ensure_ascii=False, indent, sort_keys); indent < 0 is None.
std::string to_json_text(const Json& json, int indent, bool sort_keys);

// value[key]; absent is undefined.
Value get_item(const Value& value, const Value& key);
// value[start:stop:step]; null pointers are left out.
Value get_slice(const Value& value, const int64_t* start, const int64_t* stop, int64_t step);

// a op b for + - * / // %.
Value arithmetic(std::string_view op, const Value& a, const Value& b);

}  // namespace npu::jinja
