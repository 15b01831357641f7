// Template text → trees. Constructs that this program does not implement are errors with their
// line. Private to src/io.
#pragma once

#include <string_view>

#include "io/jinja_ast.h"

namespace npu::jinja {

Block parse_template(std::string_view source);  // throws TemplateError

}  // namespace npu::jinja
