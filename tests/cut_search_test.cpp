// The cut that estimates choose: on a chain of products whose parts cost what a formula says.
#include "compile/cut_search.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "base/file.h"
#include "compile_fakes.h"
#include "ops/ops.h"

namespace npu {
namespace {

// Prices parts by how many products they have.
class PricedBackend : public testing_fakes::FakeBackend {
 public:
  using Price = std::function<Result<double>(const Graph&)>;
  explicit PricedBackend(Price price, double launch_seconds = 10e-6)
      : FakeBackend({}), price_(std::move(price)), traits_(FakeBackend::traits()) {
    traits_.launch_seconds = launch_seconds;
  }

  const Traits& traits() const override { return traits_; }
  std::optional<CostRates> cost_rates(const CompileOptions&) override {
    CostRates rates;
    rates.cycles_per_second = rates.memory_bytes_per_second = 1e9;
    rates.flops_per_second = 1e12;
    rates.compile_seconds = 100;
    return rates;
  }
  Result<double> estimate_cycles(const Graph& part, const CompileOptions&) override {
    ++asked;
    return price_(part);
  }

  std::atomic<int> asked = 0;

 private:
  Price price_;
  Traits traits_;
};

// x·w0·w1·…, all [16,16].
Graph chain(int products) {
  Builder b("chain");
  Value x = b.input("x", {DType::kF32, {16, 16}});
  for (int i = 0; i < products; ++i) {
    x = ops::matmul(x, b.input("w" + std::to_string(i), {DType::kF32, {16, 16}}));
  }
  b.output("y", x);
  return std::move(b).build();
}

std::vector<int64_t> products_of_parts(const Graph& graph, const PartLabels& labels) {
  std::vector<int64_t> counts;
  for (const Part& part : split(graph, labels)) counts.push_back(part.graph.num_contractions());
  return counts;
}

class CutSearchTest : public testing::Test {
 protected:
  CutSearchTest() { settings.cache_dir = folder.path(); }
  std::optional<ChosenCut> search(PricedBackend& backend, int products) {
    return search_cut(chain(products), backend, {}, settings, bounds);
  }
  TempDir folder;
  CompileSettings settings;
  CutBounds bounds{{.contractions = 2}, 1000};
};

// Three are as cheap as one, more or fewer are not: the best cut of nine is 3 + 3 + 3.
double best_in_threes(const Graph& part) {
  const auto n = static_cast<double>(part.num_contractions());
  return 1000 + 3000 * std::abs(n - 3) * n;
}

TEST_F(CutSearchTest, FindsTheCheapestCut) {
  PricedBackend backend(best_in_threes);
  const auto cut = search(backend, 9);
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(products_of_parts(chain(9), cut->labels), (std::vector<int64_t>{3, 3, 3}));
  EXPECT_NE(cut->note.find("3,000 cycles and 3 launches"), std::string::npos) << cut->note;
  EXPECT_LE(backend.asked, static_cast<int>(kMostEstimates) + 5);
}

TEST_F(CutSearchTest, AsksNothingTwiceAndChoosesTheSame) {
  PricedBackend first(best_in_threes), second(best_in_threes);
  const auto cut = search(first, 9), again = search(second, 9);
  EXPECT_EQ(second.asked, 0);
  EXPECT_EQ(again->labels.part, cut->labels.part);
  EXPECT_EQ(again->note, cut->note);
  EXPECT_EQ(again->digest, cut->digest);
  EXPECT_FALSE(cut->digest.empty());
}

TEST_F(CutSearchTest, KeepsToWhatCompilingMayTake) {
  bounds.compile_seconds = 200;  // two products
  PricedBackend backend([](const Graph&) { return 10.0; });
  const auto cut = search(backend, 6);
  EXPECT_EQ(products_of_parts(chain(6), cut->labels), (std::vector<int64_t>{2, 2, 2}));
}

TEST_F(CutSearchTest, ALaunchCountsAsTime) {
  const auto joined_costs_more = [](const Graph& part) {
    return 1000 * std::pow(static_cast<double>(part.num_contractions()), 1.5);
  };
  PricedBackend dear(joined_costs_more), free(joined_costs_more, 0);
  EXPECT_EQ(search(dear, 4)->labels.count, 1);
  EXPECT_GT(search(free, 4)->labels.count, 1);
}

TEST_F(CutSearchTest, IsNeverDearerThanTheLimitsOwnCut) {
  // Every part but those of the limits' cut (two products) is refused.
  PricedBackend backend([](const Graph& part) -> Result<double> {
    if (part.num_contractions() == 2) return 5.0;
    return Error{ErrorKind::kBadInput, "fake", "no", "", ""};
  });
  const auto cut = search(backend, 6);
  ASSERT_TRUE(cut.has_value());
  EXPECT_EQ(products_of_parts(chain(6), cut->labels), (std::vector<int64_t>{2, 2, 2}));
}

TEST_F(CutSearchTest, WithoutEstimatesTheLimitsDecide) {
  PricedBackend refusing([](const Graph&) -> Result<double> {
    return Error{ErrorKind::kBadInput, "fake", "no", "", ""};
  });
  EXPECT_FALSE(search(refusing, 6).has_value());
  testing_fakes::FakeBackend silent({});
  EXPECT_FALSE(search_cut(chain(6), silent, {}, settings, bounds).has_value());
}

TEST_F(CutSearchTest, WhatALimitStoppedIsNotKept) {
  PricedBackend stopped([](const Graph& part) -> Result<double> {
    if (part.num_contractions() <= 2) return 5.0;
    return Error{ErrorKind::kRetriable, "fake", "took too long", "", ""};
  });
  const auto cut = search(stopped, 6);
  ASSERT_TRUE(cut.has_value());
  EXPECT_TRUE(cut->digest.empty());
}

}  // namespace
}  // namespace npu
