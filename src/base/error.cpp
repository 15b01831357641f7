// How failures read: one line, always in the same order.
#include "base/error.h"

#include <string_view>

namespace npu {

std::string Error::text() const {
  std::string line;
  const auto append = [&line](std::string_view separator, std::string_view label,
                              std::string_view part) {
    if (part.empty()) return;
    if (!line.empty()) line += separator;
    line += label;
    line += part;
  };
  append("", "", where);
  append(": ", "", what);
  append("; ", "got ", got);
  append("; ", "hint: ", hint);
  return line;
}

UserError::UserError(Error error) : error_(std::move(error)), text_(error_.text()) {}

void fail(ErrorKind kind, std::string where, std::string what, std::string got, std::string hint) {
  throw UserError({kind, std::move(where), std::move(what), std::move(got), std::move(hint)});
}

void fail_input(std::string where, std::string what, std::string got, std::string hint) {
  fail(ErrorKind::kBadInput, std::move(where), std::move(what), std::move(got), std::move(hint));
}

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  throw InternalError(std::string(file) + ":" + std::to_string(line) + ": internal error: (" +
                      condition + ") does not hold" + (detail.empty() ? "" : "; " + detail));
}

}  // namespace npu
