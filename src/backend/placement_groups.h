// What can be placed apart: each graph of a model belongs to one of these groups.
#pragma once

#include <array>
#include <string_view>

namespace npu {

inline constexpr std::array<std::string_view, 6> kPlacementGroups = {
    "fwd", "bwd", "rms", "rms-bwd", "ce-stats", "ce-grad"};

}  // namespace npu
