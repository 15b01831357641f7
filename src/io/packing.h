// Which documents share a sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace npu {

// Best-fit decreasing: each length, longest first (of equals the earlier), goes into the bin where
// the least room is left over, or into a new one. Bins hold places in `lengths`, in the order in
// which they were filled. No length may be above `room`.
std::vector<std::vector<size_t>> best_fit_bins(std::span<const int64_t> lengths, int64_t room);

}  // namespace npu
