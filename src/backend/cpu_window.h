// Columns that need no work: where attention's mask is closed, its probabilities are 0 whatever the
// scores are. A stage whose values hold that form is run only on the columns between which its
// rows are open, so packed documents and the future cost nothing.
#pragma once

#include "backend/cpu_plan.h"

namespace npu::cpu {

// Gives stages their windows and cuts these finer: the fewer rows share a window, the narrower it
// is. Called when stages are built and nothing is placed.
void find_windows(Plan& plan);

// [first, last)
struct ColumnRange {
  int64_t first = 0, last = 0;
  int64_t count() const { return last - first; }
};

// Widens `range` to the open columns of a row of the window's witness, in steps of
// kWindowGrain; to all columns for a row without any.
inline constexpr int64_t kWindowGrain = 32;
void widen_to_row(const Window& window, DType dtype, const std::byte* row, ColumnRange& range);

}  // namespace npu::cpu
