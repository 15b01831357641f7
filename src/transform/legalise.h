// What vendors' compilers cannot take, rewritten into what they can: passes that a backend names in
// Traits::legalise, run after the default ones.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "transform/passes.h"

namespace npu {

// All of them, of every vendor. Two things that vendors do need no pass: unused inputs are gone and
// equal inputs are one before a part reaches a compiler (dead_code, Builder, canonicalize).
std::span<const Pass> legalise_passes();

// The passes of these names, in this order. `who` (a backend) is named by the UserError that an
// unknown name is.
std::vector<Pass> legalise_passes(std::span<const std::string> names, const std::string& who);

}  // namespace npu
