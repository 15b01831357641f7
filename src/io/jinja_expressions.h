// Expressions of the template language: tokens → trees. Private to src/io.
#pragma once

#include "io/jinja_ast.h"
#include "io/jinja_tokens.h"

namespace npu::jinja {

// Both throw TemplateError.
ExprPtr parse_expression(TokenStream& tokens);
// One expression, or several with commas between, which are a tuple. `with_condition` lets `a if b`
// be one; where a loop's own `if` may follow it is not.
ExprPtr parse_tuple_or_one(TokenStream& tokens, bool with_condition = true);

}  // namespace npu::jinja
