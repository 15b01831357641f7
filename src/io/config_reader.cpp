// Typed access to untrusted JSON objects.
#include "io/config_reader.h"

#include <cmath>

namespace npu {

std::string value_text(const Json& value) {
  constexpr size_t kLongest = 160;
  if (value.is_object() && value.size() > 8) return "an object of " + std::to_string(value.size());
  if (value.is_array() && value.size() > 8) return "a list of " + std::to_string(value.size());
  std::string text = value.dump();
  if (text.size() > kLongest)
    return std::string(value.type_name()) + " of " + std::to_string(text.size()) + " bytes";
  return text;
}

ConfigReader::ConfigReader(const Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  if (!object_.is_object()) fail_input(where_, "must be a JSON object", value_text(object_));
}

const Json* ConfigReader::find(std::string_view key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const Json& ConfigReader::require(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr)
    fail_key(key, "the key is missing", "",
             "the file must hold it: see a published model or adapter of the family");
  return *value;
}

int64_t ConfigReader::whole(std::string_view key, int64_t low, int64_t high,
                            std::optional<int64_t> fallback) const {
  if (fallback && find(key) == nullptr) return *fallback;
  const Json& value = require(key);
  const std::string range =
      "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
  if (!value.is_number_integer()) refuse(key, "must be " + range);
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    refuse(key, "must be " + range);
  const auto result = value.get<int64_t>();
  if (result < low || result > high) refuse(key, "must be " + range);
  return result;
}

double ConfigReader::number(std::string_view key, std::optional<double> fallback) const {
  if (fallback && find(key) == nullptr) return *fallback;
  const Json& value = require(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(key, "must be a number");
  return value.get<double>();
}

double ConfigReader::positive(std::string_view key, std::optional<double> fallback) const {
  const double result = number(key, fallback);
  if (!(result > 0)) refuse(key, "must be greater than 0");
  return result;
}

bool ConfigReader::flag(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(key, "must be true or false");
  return value->get<bool>();
}

std::string ConfigReader::text(std::string_view key, std::optional<std::string> fallback) const {
  if (fallback && find(key) == nullptr) return *fallback;
  const Json& value = require(key);
  if (!value.is_string()) refuse(key, "must be a string");
  return value.get<std::string>();
}

void ConfigReader::fail_key(std::string_view key, std::string what, std::string got,
                            std::string hint) const {
  fail_input(where_ + ": " + std::string(key), std::move(what), std::move(got), std::move(hint));
}

void ConfigReader::refuse(std::string_view key, std::string what, std::string hint) const {
  const Json* value = find(key);
  fail_key(key, std::move(what), value == nullptr ? "" : value_text(*value), std::move(hint));
}

}  // namespace npu
