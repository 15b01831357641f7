// Typed access to an untrusted JSON object: each value is there with its type and range, or an
// error names file, key and value. Private to src/io.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "io/json.h"

namespace npu {

class ConfigReader {
 public:
  // `object` must outlive the reader. Not an object: UserError.
  ConfigReader(const Json& object, std::string where);

  // The value, or null when the key is absent or null: both mean "not given" in these files.
  const Json* find(std::string_view key) const;

  // Without a fallback an absent key is an error.
  int64_t whole(std::string_view key, int64_t low, int64_t high,
                std::optional<int64_t> fallback = std::nullopt) const;
  double number(std::string_view key, std::optional<double> fallback = std::nullopt) const;
  double positive(std::string_view key, std::optional<double> fallback = std::nullopt) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::optional<std::string> fallback = std::nullopt) const;

  [[noreturn]] void fail_key(std::string_view key, std::string what, std::string got = "",
                             std::string hint = "") const;
  // fail_key with the key's own value as `got`.
  [[noreturn]] void refuse(std::string_view key, std::string what, std::string hint = "") const;
  const std::string& where() const { return where_; }

 private:
  const Json& require(std::string_view key) const;

  const Json& object_;
  std::string where_;
};

// A value as messages show it: JSON text, shortened.
std::string value_text(const Json& value);

}  // namespace npu
