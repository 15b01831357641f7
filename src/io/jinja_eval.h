// Runs a parsed template. Private to src/io.
#pragma once

#include <map>
#include <string>

#include "io/jinja_ast.h"

namespace npu::jinja {

// The text that `block` writes when it sees `variables`. `date` is what strftime_now tells ("":
// today). Work and output are bounded. Throws TemplateError with its line.
std::string run_template(const Block& block, std::map<std::string, Value> variables,
                         const std::string& date);

}  // namespace npu::jinja
