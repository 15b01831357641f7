// The environment, which only this folder and src/cli read.
#pragma once

#include <string>

namespace npu {

// "" for a variable that is not set.
std::string environment(const char* name);

}  // namespace npu
