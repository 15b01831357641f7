// How far the training graph's log-probabilities are from a serving engine's, token by token.
#pragma once

#include <cstdint>
#include <span>

namespace npu {

// Of gap = log p(training) − log p(serving) over tokens, in nats.
struct GapStatistics {
  int64_t tokens = 0;
  double mean_abs = 0;
  double rms = 0;
  double p99_abs = 0;  // 99 % of tokens are at most this far off
  double max_abs = 0;
  double bias = 0;  // mean gap: below 0 where training finds the tokens less likely
  // Mean of exp(gap) − 1 − gap: never negative, and on tokens that the serving engine sampled an
  // unbiased estimate of KL(serving ‖ training).
  double kl = 0;
};

// Both of one length, at least 1.
GapStatistics gap_statistics(std::span<const double> training, std::span<const double> serving);

}  // namespace npu
