// Best-fit decreasing in O(n log n), bins found by the room that they have left; groups by length.
#include "io/packing.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"

namespace npu {

std::vector<std::vector<size_t>> best_fit_bins(std::span<const int64_t> lengths, int64_t room) {
  std::vector<size_t> by_length(lengths.size());
  std::iota(by_length.begin(), by_length.end(), size_t{0});
  std::stable_sort(by_length.begin(), by_length.end(),
                   [&](size_t a, size_t b) { return lengths[a] > lengths[b]; });
  std::vector<std::vector<size_t>> bins;
  std::vector<std::vector<size_t>> with_room(static_cast<size_t>(room) + 1);  // by the room left
  std::set<int64_t> rooms;  // for which there are bins
  for (const size_t place : by_length) {
    const int64_t length = lengths[place];
    NPU_CHECK(length <= room, "a document is longer than a sequence");
    int64_t left = room;
    size_t bin = bins.size();
    const auto fit = rooms.lower_bound(length);
    if (fit != rooms.end()) {
      left = *fit;
      std::vector<size_t>& candidates = with_room[static_cast<size_t>(left)];
      bin = candidates.back();
      candidates.pop_back();
      if (candidates.empty()) rooms.erase(fit);
    } else {
      bins.emplace_back();
    }
    bins[bin].push_back(place);
    with_room[static_cast<size_t>(left - length)].push_back(bin);
    rooms.insert(left - length);
  }
  return bins;
}

std::vector<SequenceGroup> group_sequences(std::span<const int64_t> lengths,
                                           std::span<const int64_t> seq_lens, int64_t size) {
  std::vector<int64_t> wanted;
  for (const int64_t length : lengths) {
    const auto fit = std::lower_bound(seq_lens.begin(), seq_lens.end(), length);
    NPU_CHECK(fit != seq_lens.end(), "a sequence is longer than the longest bucket");
    wanted.push_back(*fit);
  }
  std::vector<size_t> longest_first(lengths.size());
  std::iota(longest_first.begin(), longest_first.end(), size_t{0});
  std::stable_sort(longest_first.begin(), longest_first.end(),
                   [&](size_t a, size_t b) { return wanted[a] > wanted[b]; });
  std::vector<SequenceGroup> groups;
  for (const size_t place : longest_first) {
    if (groups.empty() || static_cast<int64_t>(groups.back().sequences.size()) == size) {
      groups.push_back({wanted[place], {}});
    }
    groups.back().sequences.push_back(place);
  }
  for (SequenceGroup& group : groups) std::sort(group.sequences.begin(), group.sequences.end());
  std::sort(groups.begin(), groups.end(),
            [](const auto& a, const auto& b) { return a.sequences[0] < b.sequences[0]; });
  return groups;
}

}  // namespace npu
