// Which documents share a sequence, and which sequences a micro-batch.
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

// Sequences that run together, padded to one of the sequence lengths.
struct SequenceGroup {
  int64_t seq_len = 0;
  std::vector<size_t> sequences;  // places in the lengths that were grouped, rising
};
// Groups of `size` sequences (one of them may lack some), each as long as the shortest of
// `seq_lens` (rising) that holds its longest. Sequences meet others that want the same length, so
// that padding is never above that of groups which all have the longest; groups follow the order of
// their first sequences. No length may be above the longest of `seq_lens`.
std::vector<SequenceGroup> group_sequences(std::span<const int64_t> lengths,
                                           std::span<const int64_t> seq_lens, int64_t size);

}  // namespace npu
