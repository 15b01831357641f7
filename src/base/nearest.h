// The best guess at what a misspelled name was meant to be.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace npu {

// Levenshtein's distance: insertions, deletions and substitutions that turn a into b.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// The candidate closest to `name` ("" when there is none). Long names from hostile files are not
// compared.
template <class Range>
std::string nearest_name(std::string_view name, const Range& candidates) {
  constexpr size_t kLongest = 256;
  std::string best;
  size_t least = kLongest;
  if (name.size() > kLongest) return best;
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

// "did you mean --rank? ", or "" where no candidate is a slip or two away. For hints.
template <class Range>
std::string did_you_mean(std::string_view name, const Range& candidates) {
  const std::string best = nearest_name(name, candidates);
  const size_t most = std::max<size_t>(2, name.size() / 3);
  return edit_distance(name, best) <= most ? "did you mean " + best + "? " : "";
}

}  // namespace npu
