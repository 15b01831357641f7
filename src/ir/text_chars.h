// Characters of the text form, as printing and parsing must agree on them.
#pragma once

#include <string_view>

namespace npu {

// Of bare names: graphs, values, ops, attributes.
inline bool is_word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-';
}

// Of numbers, "inf" and "nan".
inline bool is_number_char(char c) { return is_word_char(c) || c == '+'; }

// Whether a number is written as a real: with a point or an exponent, or as inf or nan.
inline bool looks_real(std::string_view number) {
  return number.find_first_of(".eEn") != std::string_view::npos;
}

}  // namespace npu
