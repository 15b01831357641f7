// Where to cut a graph, by the vendor's own forecast of what its parts will cost: the path through
// a chain of pieces whose parts and launches take least, within what compiling a part may take.
#pragma once

#include <optional>

#include "backend/backend.h"
#include "compile/plan.h"

namespace npu {

struct CutBounds {
  PartLimits limits;           // of a part, except on contractions: those are bounded by
  double compile_seconds = 0;  // CostRates::compile_seconds · contractions, at most
};

// The pieces are those of partition() with one contraction each; parts are runs of them, and the
// cut under `limits` as it stands is tried beside them. At most kMostEstimates parts are priced, in
// the order in which they look best: by products and bytes first, then by what estimates showed so
// far. Deterministic, and kept in the cache with each estimate. Nothing where the compiler is
// missing or prices none of the cuts: then the limits decide.
inline constexpr size_t kMostEstimates = 20;
std::optional<ChosenCut> search_cut(const Graph& graph, Backend& backend,
                                    const CompileOptions& options, const CompileSettings& settings,
                                    const CutBounds& bounds);

}  // namespace npu
