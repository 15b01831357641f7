// Filters, tests, methods and functions of the template language. Private to src/io.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/jinja_value.h"

namespace npu::jinja {

// What was written between the brackets of a call.
struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at `place` or called `name`; null when absent.
  const Value* find(size_t place, std::string_view name) const;
  // Refuses more than `most` values and names that are not listed.
  void check(std::string_view callee, size_t most,
             const std::vector<std::string_view>& names = {}) const;
};

bool is_filter(std::string_view name);
Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments);

bool is_test(std::string_view name);
bool apply_test(std::string_view name, const Value& input, const Arguments& arguments);

// value.name: a method, an entry of a dict or namespace, a fact of a loop; else undefined.
Value get_attribute(const Value& value, const std::string& name);
Value call_method(const Value& self, const std::string& name, const Arguments& arguments);

// Functions that every template sees. `date` is "YYYY-MM-DD" or "".
bool is_function(std::string_view name);
Value call_function(std::string_view name, const Arguments& arguments, const std::string& date);

}  // namespace npu::jinja
