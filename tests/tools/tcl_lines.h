// The lines of a TCL text, for what reads it in tests.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace npu {

// The line at hand breaks a rule, or is not understood.
struct TclRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What stands between the first `open` and the `close` behind it.
inline std::string between(const std::string& text, const std::string& open,
                           const std::string& close) {
  const size_t begin = text.find(open);
  if (begin == std::string::npos) throw TclRefused("no '" + open + "'");
  const size_t end = text.find(close, begin + open.size());
  if (end == std::string::npos) throw TclRefused("no '" + close + "'");
  return text.substr(begin + open.size(), end - begin - open.size());
}

// "bf16" of "name: [A0, A1]/bf16".
inline std::string type_name_in(const std::string& text) {
  const size_t begin = text.find("]/") + 2;
  const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789", begin);
  return text.substr(begin, end - begin);
}

class TclLines {
 public:
  explicit TclLines(std::string_view text) : text_(std::string(text)) {}
  const std::string& line() const { return line_; }

 protected:
  // The next line, without its indent.
  bool next() {
    if (!std::getline(text_, line_)) return false;
    line_.erase(0, line_.find_first_not_of(' '));
    return true;
  }
  // The same only if it begins so.
  bool next_if(std::string_view start) {
    const std::streampos back = text_.tellg();
    if (!next()) return false;
    if (line_.starts_with(start)) return true;
    text_.seekg(back);
    return false;
  }

  std::string line_;

 private:
  std::istringstream text_;
};

}  // namespace npu
