// How names from untrusted files appear in messages. Private to src/io.
#pragma once

#include <string>
#include <string_view>

namespace npu {

// `text` in double quotes; a long one only by its length, control characters as \xNN, so that no
// file can flood or repaint a terminal.
inline std::string in_quotes(std::string_view text) {
  constexpr size_t kLongest = 120;
  if (text.size() > kLongest) return "\"…\" (" + std::to_string(text.size()) + " bytes)";
  std::string result = "\"";
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) {
      constexpr std::string_view kHex = "0123456789abcdef";
      result += {'\\', 'x', kHex[code >> 4], kHex[code & 15]};
    } else {
      result += c;
    }
  }
  return result + "\"";
}

}  // namespace npu
