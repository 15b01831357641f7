// Template text → tokens, with Jinja's white-space rules (trim_blocks and lstrip_blocks on, as
// transformers sets them). Private to src/io.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace npu::jinja {

enum class TokenKind {
  kText,  // outside of tags
  kStatementBegin,
  kStatementEnd,
  kOutputBegin,
  kOutputEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // of strings: with escapes resolved
  int line = 1;
};

// Throws TemplateError. The last token is kEnd.
std::vector<Token> tokenize(std::string_view source);

}  // namespace npu::jinja
