// How far the training graph's log-probabilities are from a serving engine's.
#include "train/serve_gap.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace npu {

GapStatistics gap_statistics(std::span<const double> training, std::span<const double> serving) {
  NPU_CHECK(training.size() == serving.size() && !training.empty(), "gap of unequal lists");
  GapStatistics out;
  const double n = static_cast<double>(training.size());
  std::vector<double> magnitudes;
  for (size_t i = 0; i < training.size(); ++i) {
    const double gap = training[i] - serving[i];
    magnitudes.push_back(std::abs(gap));
    out.mean_abs += std::abs(gap) / n;
    out.rms += gap * gap / n;
    out.bias += gap / n;
    out.kl += (std::expm1(gap) - gap) / n;
  }
  out.tokens = static_cast<int64_t>(training.size());
  out.rms = std::sqrt(out.rms);
  std::sort(magnitudes.begin(), magnitudes.end());
  out.max_abs = magnitudes.back();
  out.p99_abs = magnitudes[static_cast<size_t>(std::ceil(0.99 * n)) - 1];
  return out;
}

}  // namespace npu
