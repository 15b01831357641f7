// Which processor this is.
#pragma once

#include <string>

namespace npu {

// The processor's name as the kernel has it; "" where it does not say.
std::string cpu_model();

}  // namespace npu
