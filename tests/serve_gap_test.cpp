// The figures of a log-probability gap.
#include "train/serve_gap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace npu {
namespace {

TEST(GapStatistics, AreWhatTheyAreCalled) {
  const std::vector<double> training = {-1.0, -2.0, -3.0, -4.0}, serving = {-1.5, -2.0, -2.0, -4.0};
  const GapStatistics s = gap_statistics(training, serving);  // gaps 0.5, 0, -1, 0
  EXPECT_EQ(s.tokens, 4);
  EXPECT_DOUBLE_EQ(s.mean_abs, 0.375);
  EXPECT_DOUBLE_EQ(s.rms, std::sqrt(1.25 / 4));
  EXPECT_DOUBLE_EQ(s.bias, -0.125);
  EXPECT_DOUBLE_EQ(s.max_abs, 1.0);
  EXPECT_DOUBLE_EQ(s.p99_abs, 1.0);
  EXPECT_NEAR(s.kl, (std::exp(0.5) - 1.5 + std::exp(-1.0)) / 4, 1e-15);
}

TEST(GapStatistics, PercentileLeavesOneInAHundredOut) {
  std::vector<double> training(200, -1.0);
  const std::vector<double> serving(200, -1.0);
  training[3] = -9.0;
  training[150] = -3.0;
  training[199] = -1.5;
  const GapStatistics s = gap_statistics(training, serving);
  EXPECT_DOUBLE_EQ(s.max_abs, 8.0);
  EXPECT_DOUBLE_EQ(s.p99_abs, 0.5);  // the 198th of 200: 8 and 2 lie above it
}

TEST(GapStatistics, EqualListsHaveNone) {
  const std::vector<double> same = {-1.0, -0.25};
  const GapStatistics s = gap_statistics(same, same);
  EXPECT_EQ(s.rms, 0);
  EXPECT_EQ(s.kl, 0);
}

}  // namespace
}  // namespace npu
