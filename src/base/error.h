// The three kinds of failure: expected failures are values (Result), user errors are exceptions
// that carry a hint (UserError), bugs are checks (NPU_CHECK). Nothing below src/cli calls exit().
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace npu {

// The numbers are the program's exit codes (README).
enum class ErrorKind : int {
  kCheckFailed = 1,  // a comparison that the user asked for did not pass
  kUsage = 2,        // a wrong option or argument
  kBadInput = 42,    // bad data, model, adapter or configuration: trying again will not help
  kRetriable = 75,   // device busy or lost, no space: the same command may work later
};

// One failure, printed as "where: what; got …; hint: …". `got` and `hint` may be empty.
struct Error {
  ErrorKind kind = ErrorKind::kBadInput;
  std::string where;  // file:line, option, tensor, node
  std::string what;   // the rule that was broken
  std::string got;    // what was found instead
  std::string hint;   // what the user can do

  std::string text() const;
};

// Thrown for mistakes that only the user can mend. Caught once, in src/cli/main.cpp.
class UserError : public std::exception {
 public:
  explicit UserError(Error error);
  const char* what() const noexcept override { return text_.c_str(); }
  const Error& error() const { return error_; }

 private:
  Error error_;
  std::string text_;
};

[[noreturn]] void fail(ErrorKind kind, std::string where, std::string what, std::string got = "",
                       std::string hint = "");

// Shorthand for the most frequent kind.
[[noreturn]] void fail_input(std::string where, std::string what, std::string got = "",
                             std::string hint = "");

// A value, or the Error that stood in its way. For failures that callers are expected to handle.
template <class T>
class Result {
 public:
  Result(T value) : state_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return ok(); }
  T& value() { return std::get<T>(state_); }
  const T& value() const { return std::get<T>(state_); }
  const Error& error() const { return std::get<Error>(state_); }

  // The value, or UserError(error()): for callers that can't go on without it.
  T take() && {
    if (!ok()) throw UserError(error());
    return std::move(std::get<T>(state_));
  }

 private:
  std::variant<T, Error> state_;
};

// Thrown by NPU_CHECK: a bug in this program, never reachable from user input.
class InternalError : public std::exception {
 public:
  explicit InternalError(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& detail);

}  // namespace npu

// States an invariant of this program. `detail` is a string expression with the values involved.
#define NPU_CHECK(condition, detail)                                                 \
  do {                                                                               \
    if (!(condition)) ::npu::check_failed(__FILE__, __LINE__, #condition, (detail)); \
  } while (false)
