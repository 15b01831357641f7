// The program's version, as it stands in run records and --version.
#pragma once

#include <string_view>

namespace npu {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace npu
