// Packing: every token once, documents apart, deterministic order, exact resume.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <span>

#include "base/hash.h"
#include "io/dataset.h"
#include "io/packing.h"

namespace npu {
namespace {

// Row i holds lengths[i] tokens of its own: 1000·i, 1000·i + 1, …; the first half is not trained.
Dataset rows_of(const std::vector<int>& lengths) {
  Dataset data;
  for (size_t i = 0; i < lengths.size(); ++i) {
    TokenRow row;
    for (int k = 0; k < lengths[i]; ++k) {
      row.input_ids.push_back(static_cast<int32_t>(1000 * i) + k);
      row.labels.push_back(k < lengths[i] / 2 ? kNoLoss : row.input_ids.back());
    }
    row.where = "test:" + std::to_string(i + 1);
    data.rows.push_back(row);
  }
  return data;
}

std::vector<int> random_lengths(size_t count, int most, uint64_t seed) {
  std::vector<int> lengths;
  for (size_t i = 0; i < count; ++i) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    lengths.push_back(2 + static_cast<int>((seed >> 33) % static_cast<uint64_t>(most - 1)));
  }
  return lengths;
}

std::vector<Batch> epoch(Batcher& batcher) {
  std::vector<Batch> batches;
  for (int64_t i = batcher.batches_per_epoch(); i > 0; --i) batches.push_back(batcher.next());
  return batches;
}

bool same(const Batch& a, const Batch& b) {
  return a.seq_len == b.seq_len && a.input_ids == b.input_ids && a.labels == b.labels &&
         a.segments == b.segments && a.positions == b.positions &&
         a.num_documents == b.num_documents;
}

// Checks one batch by itself; its documents as (first token, length).
std::vector<std::pair<int32_t, int64_t>> documents(const Batch& batch, int32_t pad_id) {
  std::vector<std::pair<int32_t, int64_t>> found;
  const auto size = static_cast<size_t>(batch.rows());
  EXPECT_EQ(batch.input_ids.size(), size);
  EXPECT_EQ(batch.labels.size(), size);
  EXPECT_EQ(batch.segments.size(), size);
  EXPECT_EQ(batch.positions.size(), size);
  for (int64_t s = 0; s < batch.batch; ++s) {
    int32_t segment = -1;
    bool padding = false;
    for (int64_t t = 0; t < batch.seq_len; ++t) {
      const auto i = static_cast<size_t>(s * batch.seq_len + t);
      if (batch.segments[i] < 0) {
        padding = true;
        EXPECT_EQ(batch.input_ids[i], pad_id);
        EXPECT_EQ(batch.labels[i], kNoLoss);
        EXPECT_EQ(batch.positions[i], 0);
        continue;
      }
      EXPECT_FALSE(padding) << "a document after padding";
      if (batch.segments[i] != segment) {
        EXPECT_EQ(batch.segments[i], segment + 1);
        segment = batch.segments[i];
        EXPECT_EQ(batch.positions[i], 0);
        found.emplace_back(batch.input_ids[i], 1);
      } else {
        EXPECT_EQ(batch.positions[i], batch.positions[i - 1] + 1);
        EXPECT_EQ(batch.input_ids[i], batch.input_ids[i - 1] + 1);
        ++found.back().second;
      }
    }
  }
  EXPECT_EQ(batch.num_documents, static_cast<int64_t>(found.size()));
  return found;
}

TEST(Batcher, BestFitKeepsDocumentsWholeAndEachOnce) {
  const std::vector<int> lengths = random_lengths(500, 64, 3);
  Dataset data = rows_of(lengths);
  data.rows[17].dropped = true;
  Batcher batcher(data, {.seq_len = 64, .batch = 3, .seed = 5, .pad_id = -7});
  for (int e = 0; e < 3; ++e) {
    std::map<int32_t, int64_t> seen;
    int64_t most = 0;
    const auto buckets = batcher.buckets();
    ASSERT_EQ(buckets.size(), 1U);
    EXPECT_EQ(buckets[0].documents, 499);
    const int64_t expected_most = std::ranges::max(buckets[0].loss_rows);
    const double fill = batcher.fill_ratio();
    const std::vector<Batch> batches = epoch(batcher);
    for (const Batch& batch : batches) {
      for (const auto& [first, length] : documents(batch, -7))
        EXPECT_TRUE(seen.emplace(first, length).second);
      most = std::max(most, static_cast<int64_t>(loss_rows(batch).size()));
    }
    EXPECT_EQ(most, expected_most);
    ASSERT_EQ(seen.size(), 499U);
    int64_t tokens = 0;
    for (const auto& [first, length] : seen) {
      EXPECT_NE(first, 17000);
      EXPECT_EQ(length, lengths[static_cast<size_t>(first / 1000)]);
      tokens += length;
    }
    EXPECT_DOUBLE_EQ(fill,
                     static_cast<double>(tokens) / static_cast<double>(batches.size() * 3 * 64));
    EXPECT_GT(fill, 0.97);  // best fit wastes little
  }
  EXPECT_EQ(batcher.position().epoch, 2);
  batcher.next();
  EXPECT_EQ(batcher.position().epoch, 3);
  EXPECT_EQ(batcher.position().batch_in_epoch, 1);
}

TEST(Batcher, WrapCutsARunningStream) {
  const std::vector<int> lengths = random_lengths(100, 90, 4);
  const Dataset data = rows_of(lengths);
  Batcher batcher(data, {.seq_len = 32, .packing = Packing::kWrap, .seed = 1});
  std::set<int32_t> seen;
  int64_t total = 0, padded = 0;
  const auto batches = epoch(batcher);
  for (const Batch& batch : batches) {
    documents(batch, 0);
    for (size_t i = 0; i < batch.input_ids.size(); ++i) {
      if (batch.segments[i] < 0) {
        ++padded;
        EXPECT_EQ(&batch, &batches.back());
      } else {
        EXPECT_TRUE(seen.insert(batch.input_ids[i]).second);
      }
    }
  }
  for (const int length : lengths) total += length;
  EXPECT_EQ(static_cast<int64_t>(seen.size()), total);
  EXPECT_LT(padded, 32);
}

TEST(Batcher, NonePadsEachRow) {
  const Dataset data = rows_of({3, 7, 5});
  Batcher batcher(data, {.seq_len = 8, .batch = 2, .packing = Packing::kNone});
  EXPECT_EQ(batcher.batches_per_epoch(), 2);
  EXPECT_DOUBLE_EQ(batcher.fill_ratio(), 15.0 / 32.0);
  int64_t found = 0;
  for (const Batch& batch : epoch(batcher)) found += batch.num_documents;
  EXPECT_EQ(found, 3);
}

TEST(Batcher, SameSeedSameBatchesOtherSeedOthers) {
  const Dataset data = rows_of(random_lengths(200, 30, 9));
  Batcher a(data, {.seq_len = 32, .seed = 42}), b(data, {.seq_len = 32, .seed = 42}),
      c(data, {.seq_len = 32, .seed = 43});
  bool differs = false, epochs_differ = false;
  const std::vector<Batch> first = epoch(a);
  for (const Batch& batch : first) {
    EXPECT_TRUE(same(batch, b.next()));
    differs = differs || !same(batch, c.next());
  }
  EXPECT_TRUE(differs);
  for (size_t i = 0; i < first.size() && static_cast<int64_t>(i) < a.batches_per_epoch(); ++i)
    epochs_differ = epochs_differ || !same(first[i], a.next());
  EXPECT_TRUE(epochs_differ);
}

TEST(Batcher, OrderIsThisOneOnEveryPlatform) {
  const Dataset data = rows_of({4, 4, 4, 4, 4, 4, 4, 4});
  Batcher batcher(data, {.seq_len = 4, .packing = Packing::kNone, .seed = 1});
  std::vector<int32_t> order;
  for (const Batch& batch : epoch(batcher)) order.push_back(batch.input_ids[0] / 1000);
  EXPECT_EQ(order, (std::vector<int32_t>{6, 4, 2, 5, 7, 0, 1, 3}));
}

// A run is repeated, and resumed, by a later version too: two epochs of packs, by content.
TEST(Batcher, PacksAreTheseOnEveryPlatform) {
  const Dataset data = rows_of(random_lengths(300, 64, 12));
  Batcher batcher(data, {.seq_len = 64, .seed = 3});
  Sha256 digest;
  for (int e = 0; e < 2; ++e) {
    for (const Batch& batch : epoch(batcher)) {
      digest.update(std::as_bytes(std::span(batch.input_ids)));
    }
  }
  EXPECT_EQ(digest.hex(), "80313a40cc723731c7555b7572f46bc17df4234ec639648375a154fc8eac6cd8");
}

TEST(Packing, TakesTheBinWithTheLeastRoomLeft) {
  const std::vector<int64_t> lengths = {3, 7, 5, 3, 2, 10};
  // 10 | 7 3 | 5 3 2: the first 3 fills what 7 left, the second goes beside 5, and so does 2.
  EXPECT_EQ(best_fit_bins(lengths, 10), (std::vector<std::vector<size_t>>{{5}, {1, 0}, {2, 3, 4}}));
  EXPECT_TRUE(best_fit_bins({}, 10).empty());
  EXPECT_THROW(best_fit_bins(lengths, 9), InternalError);
}

TEST(Packing, GroupsOfOneLengthAreThoseOfTheOrder) {
  const auto groups =
      group_sequences(std::vector<int64_t>{3, 8, 1, 8, 2}, std::vector<int64_t>{8}, 2);
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].sequences, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(groups[1].sequences, (std::vector<size_t>{2, 3}));
  EXPECT_EQ(groups[2].sequences, (std::vector<size_t>{4}));
}

// 5 and 8 want the long one; the third place beside them is free for the first that wants less.
TEST(Packing, ShortSequencesFillUpGroupsOfLongOnes) {
  const auto groups =
      group_sequences(std::vector<int64_t>{3, 8, 1, 5, 2}, std::vector<int64_t>{4, 8}, 3);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].seq_len, 8);
  EXPECT_EQ(groups[0].sequences, (std::vector<size_t>{0, 1, 3}));
  EXPECT_EQ(groups[1].seq_len, 4);
  EXPECT_EQ(groups[1].sequences, (std::vector<size_t>{2, 4}));
  EXPECT_THROW(group_sequences(std::vector<int64_t>{9}, std::vector<int64_t>{4, 8}, 1),
               InternalError);
}

TEST(Batcher, LengthDoesNotDecideThePlaceInTheEpoch) {
  // 40 long rows fill a sequence each; 400 short ones share sequences. Neither kind comes first.
  std::vector<int> lengths(40, 60);
  lengths.resize(440, 6);
  const Dataset data = rows_of(lengths);
  Batcher batcher(data, {.seq_len = 64, .seed = 8});
  std::vector<int64_t> counts;
  for (const Batch& batch : epoch(batcher)) counts.push_back(batch.num_documents);
  const auto long_ones = [&](size_t begin, size_t end) {
    return std::count(counts.begin() + static_cast<std::ptrdiff_t>(begin),
                      counts.begin() + static_cast<std::ptrdiff_t>(end), 1);
  };
  EXPECT_EQ(long_ones(0, counts.size()), 40);
  EXPECT_GT(long_ones(0, counts.size() / 2), 8);
  EXPECT_GT(long_ones(counts.size() / 2, counts.size()), 8);
}

TEST(Batcher, SeekGoesOnAsIfNeverStopped) {
  const Dataset data = rows_of(random_lengths(60, 30, 2));
  for (const Packing packing : {Packing::kBestFit, Packing::kWrap, Packing::kNone}) {
    const BatcherOptions options{
        .seq_len = 32, .shorter = {12, 20}, .batch = 2, .packing = packing, .seed = 7};
    Batcher whole(data, options);
    std::vector<Batch> batches;
    std::vector<Batcher::Position> positions;
    for (int i = 0; i < 50; ++i) {
      positions.push_back(whole.position());
      batches.push_back(whole.next());
    }
    for (size_t i = 0; i < 50; i += 7) {
      Batcher resumed(data, options);
      resumed.next();
      resumed.seek(positions[i]);
      EXPECT_EQ(resumed.position().epoch, positions[i].epoch);
      EXPECT_EQ(resumed.position().batch_in_epoch, positions[i].batch_in_epoch);
      for (size_t k = i; k < 50; ++k)
        ASSERT_TRUE(same(resumed.next(), batches[k])) << i << " " << k;
    }
  }
}

int64_t room(const std::vector<Batch>& batches) {
  int64_t rows = 0;
  for (const Batch& batch : batches) rows += batch.rows();
  return rows;
}

// Rows of an epoch by their first token, with the length of the sequences that they ran in.
std::map<int32_t, int64_t> placed(const std::vector<Batch>& batches) {
  std::map<int32_t, int64_t> rows;
  for (const Batch& batch : batches)
    for (const auto& [first, length] : documents(batch, 0))
      EXPECT_TRUE(rows.emplace(first, batch.seq_len).second);
  return rows;
}

TEST(Batcher, BucketsTakeWhatTheyHold) {
  const Dataset data = rows_of({30, 17, 16, 8, 5, 33, 60});
  const BatcherOptions options{.seq_len = 64, .shorter = {8, 16, 32}, .packing = Packing::kNone};
  Batcher batcher(data, options);
  const std::vector<Batch> batches = epoch(batcher);
  EXPECT_EQ(placed(batches),
            (std::map<int32_t, int64_t>{
                {0, 32}, {1000, 32}, {2000, 16}, {3000, 8}, {4000, 8}, {5000, 64}, {6000, 64}}));
  Batcher again(data, options);
  const auto buckets = again.buckets();
  ASSERT_EQ(buckets.size(), 4U);
  EXPECT_EQ(buckets[0].seq_len, 64);
  EXPECT_EQ(buckets[0].sequences, 2);
  EXPECT_EQ(buckets[3].seq_len, 8);
  EXPECT_EQ(buckets[3].documents, 2);
  EXPECT_EQ(buckets[2].loss_rows, (std::vector<int64_t>{8}));
  EXPECT_DOUBLE_EQ(again.fill_ratio(), 169.0 / (2 * 64 + 2 * 32 + 16 + 2 * 8));
}

// Whatever the data: each row once, no more padding than with one length, in every epoch.
TEST(Batcher, BucketsNeverPadMore) {
  for (const int most : {9, 40, 64}) {
    for (const int64_t size : {1, 3, 4}) {
      for (const Packing packing : {Packing::kBestFit, Packing::kWrap, Packing::kNone}) {
        const Dataset data = rows_of(random_lengths(101, most, static_cast<uint64_t>(most)));
        BatcherOptions options{.seq_len = 64, .batch = size, .packing = packing, .seed = 2};
        Batcher one(data, options);
        options.shorter = {8, 16, 48};
        Batcher many(data, options);
        for (int e = 0; e < 2; ++e) {
          const auto single = epoch(one), bucketed = epoch(many);
          EXPECT_LE(room(bucketed), room(single));
          EXPECT_EQ(placed(single).size(), placed(bucketed).size());
          EXPECT_LE(bucketed.size(), single.size());
          const bool must_gain = packing == Packing::kNone && most < 64;
          EXPECT_LE(room(bucketed), room(single) - (must_gain ? 1 : 0));
        }
      }
    }
  }
}

// Long rows that leave no room for another: the case that buckets are for under packing.
TEST(Batcher, PacksThatLeaveRoomRunShorter) {
  const Dataset data = rows_of(std::vector<int>(20, 40));
  Batcher batcher(data, {.seq_len = 64, .shorter = {48}});
  for (const Batch& batch : epoch(batcher)) EXPECT_EQ(batch.seq_len, 48);
}

TEST(Batcher, NoBucketComesFirst) {
  std::vector<int> lengths(40, 60);
  lengths.resize(80, 6);
  const Dataset data = rows_of(lengths);
  Batcher batcher(data, {.seq_len = 64, .shorter = {8}, .packing = Packing::kNone, .seed = 8});
  int64_t long_first = 0;
  for (int64_t i = 0; i < 40; ++i) long_first += batcher.next().seq_len == 64;
  EXPECT_GT(long_first, 8);
  EXPECT_LT(long_first, 32);
}

TEST(Batcher, RefusesForeignPositionsAndEmptyData) {
  const Dataset data = rows_of({4, 4});
  Batcher batcher(data, {.seq_len = 8});
  EXPECT_THROW(batcher.seek({0, 99}), UserError);
  EXPECT_THROW(batcher.seek({0, -1}), UserError);
  EXPECT_THROW(batcher.seek({-1, 0}), UserError);
  Dataset none = rows_of({4});
  none.rows[0].dropped = true;
  EXPECT_THROW(Batcher(none, {.seq_len = 8}), UserError);
  EXPECT_THROW(Batcher(Dataset{}, {.seq_len = 8}), UserError);
  EXPECT_THROW(Batcher(data, {.seq_len = 2}), InternalError);
}

TEST(Batcher, PacksManyRowsSoon) {
  const Dataset data = rows_of(random_lengths(200'000, 40, 6));
  const auto start = std::chrono::steady_clock::now();
  Batcher batcher(data, {.seq_len = 2048});
  EXPECT_GT(batcher.fill_ratio(), 0.99);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

}  // namespace
}  // namespace npu
