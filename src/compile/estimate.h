// The vendor's forecast of what parts will cost, kept in the compile cache like what is compiled.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "compile/plan.h"

namespace npu {

// Cycles of one call of each part, in order; where the compiler has none to give, its words. Parts
// are canonical graphs. Asks for as many at a time as settings.jobs, each for at most
// settings.seconds_limit, and asks for none twice: refusals are kept too, but not what a missing
// tool or a limit did. Errors: the compiler is missing; an option is not one of its (kUsage).
Result<std::vector<Result<double>>> estimate_parts(std::span<const Graph* const> parts,
                                                   Backend& backend, const CompileOptions& options,
                                                   const CompileSettings& settings);

}  // namespace npu
