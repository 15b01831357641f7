// Helpers of the io tests: refusals as text, files from bytes.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/file.h"

namespace npu {

// The message of the UserError that `action` throws, "" when it throws none.
template <class Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// The message of a Result's error, "" when it holds a value.
template <class T>
std::string refusal_of(const Result<T>& result) {
  return result.ok() ? "" : result.error().text();
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

inline std::span<const std::byte> as_byte_span(const std::string& bytes) {
  return std::as_bytes(std::span(bytes.data(), bytes.size()));
}

// Little-endian bytes of a number.
template <class T>
std::string le(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

}  // namespace npu
