// Best-fit decreasing in O(n log n): bins are found by the room that they have left.
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

}  // namespace npu
