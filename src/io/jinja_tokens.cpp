// See jinja_tokens.h.
#include "io/jinja_tokens.h"

#include <algorithm>

#include "io/jinja_value.h"

namespace npu::jinja {

const Token& TokenStream::peek(size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

const Token& TokenStream::next() {
  const Token& token = peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenStream::is_operator(std::string_view text, size_t ahead) const {
  return peek(ahead).kind == TokenKind::kOperator && peek(ahead).text == text;
}

bool TokenStream::is_name(std::string_view text, size_t ahead) const {
  return peek(ahead).kind == TokenKind::kName && peek(ahead).text == text;
}

bool TokenStream::take_operator(std::string_view text) {
  if (!is_operator(text)) return false;
  next();
  return true;
}

bool TokenStream::take_name(std::string_view text) {
  if (!is_name(text)) return false;
  next();
  return true;
}

void TokenStream::expect_operator(std::string_view text) {
  if (!take_operator(text)) fail("expected `" + std::string(text) + "`");
}

void TokenStream::expect(TokenKind kind, const char* what) {
  if (peek().kind != kind) fail(std::string("expected ") + what);
  next();
}

std::string TokenStream::expect_name(const char* what) {
  if (peek().kind != TokenKind::kName) fail(std::string("expected ") + what);
  return next().text;
}

void TokenStream::fail(std::string what) const {
  const Token& token = peek();
  std::string got = token.text;
  if (token.kind == TokenKind::kEnd) got = "the end of the template";
  if (token.kind == TokenKind::kStatementEnd || token.kind == TokenKind::kOutputEnd)
    got = "the end of the tag";
  throw TemplateError{std::move(what), std::move(got), token.line};
}

}  // namespace npu::jinja
