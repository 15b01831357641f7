// Variables of the environment that a test sets and leaves as they were.
#pragma once

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace npu {

// Sets variables of the environment for a while.
class Environment {
 public:
  ~Environment() {
    for (const auto& [name, value] : before_) put(name, value);
  }
  void set(const std::string& name, const std::string& value) { change(name, value); }
  void unset(const std::string& name) { change(name, std::nullopt); }

 private:
  static void put(const std::string& name, const std::optional<std::string>& value) {
    if (value) {
      setenv(name.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }
  void change(const std::string& name, const std::optional<std::string>& value) {
    const char* now = std::getenv(name.c_str());
    before_.emplace(name, now == nullptr ? std::nullopt : std::optional<std::string>(now));
    put(name, value);
  }
  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace npu
