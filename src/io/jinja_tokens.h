// A template's tokens as its parsers read them. Private to src/io.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/jinja_lexer.h"

namespace npu::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // The token that comes next, or a later one; past the end it is kEnd.
  const Token& peek(size_t ahead = 0) const;
  const Token& next();
  bool is_operator(std::string_view text, size_t ahead = 0) const;
  bool is_name(std::string_view text, size_t ahead = 0) const;
  bool take_operator(std::string_view text);  // reads it if it is next
  bool take_name(std::string_view text);
  void expect_operator(std::string_view text);
  void expect(TokenKind kind, const char* what);
  std::string expect_name(const char* what);
  // Throws TemplateError with the next token as what was found.
  [[noreturn]] void fail(std::string what) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace npu::jinja
