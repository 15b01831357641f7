// Batcher: shuffle, pack, cut into micro-batches. An epoch's plan depends on the data, the options
// and the epoch's number only, so any position can be reached again.
#include <algorithm>

#include "base/random.h"
#include "io/dataset.h"
#include "io/packing.h"

namespace npu {
namespace {

// A stretch of one row in a sequence. It is a document of its own there.
struct Piece {
  size_t row = 0;
  int64_t begin = 0, length = 0;
};
using Sequence = std::vector<Piece>;

// Rows that train something, in this epoch's order (Fisher and Yates). The modulus favours small
// values by less than 2⁻³².
std::vector<size_t> shuffled_rows(const Dataset& dataset, uint64_t seed, int64_t epoch) {
  std::vector<size_t> rows;
  for (size_t i = 0; i < dataset.rows.size(); ++i)
    if (!dataset.rows[i].dropped) rows.push_back(i);
  const RandomStream random(seed, "shuffle." + std::to_string(epoch));
  for (size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random.bits(i) % i]);
  return rows;
}

int64_t row_length(const Dataset& dataset, size_t row) {
  return static_cast<int64_t>(dataset.rows[row].input_ids.size());
}

std::vector<Sequence> one_row_each(const Dataset& dataset, const std::vector<size_t>& rows) {
  std::vector<Sequence> sequences;
  for (const size_t row : rows) sequences.push_back({{row, 0, row_length(dataset, row)}});
  return sequences;
}

// The stream of rows cut every seq_len tokens; a row that is cut goes on as a new document.
std::vector<Sequence> wrapped(const Dataset& dataset, const std::vector<size_t>& rows,
                              int64_t seq_len) {
  std::vector<Sequence> sequences;
  int64_t room = 0;
  for (const size_t row : rows) {
    const int64_t length = row_length(dataset, row);
    for (int64_t begin = 0; begin < length;) {
      if (room == 0) sequences.emplace_back(), room = seq_len;
      const int64_t taken = std::min(room, length - begin);
      sequences.back().push_back({row, begin, taken});
      begin += taken;
      room -= taken;
    }
  }
  return sequences;
}

// Sequences of best fit follow the shuffled order of their longest rows, and rows within one the
// shuffled order, so that neither length nor file order shows.
std::vector<Sequence> best_fit(const Dataset& dataset, const std::vector<size_t>& rows,
                               int64_t seq_len) {
  std::vector<int64_t> lengths;
  for (const size_t row : rows) lengths.push_back(row_length(dataset, row));
  std::vector<std::vector<size_t>> bins = best_fit_bins(lengths, seq_len);
  std::sort(bins.begin(), bins.end(),
            [](const auto& a, const auto& b) { return a.front() < b.front(); });
  std::vector<Sequence> sequences;
  for (std::vector<size_t>& bin : bins) {
    std::sort(bin.begin(), bin.end());
    Sequence& sequence = sequences.emplace_back();
    for (const size_t place : bin) sequence.push_back({rows[place], 0, lengths[place]});
  }
  return sequences;
}

}  // namespace

struct Batcher::State {
  const Dataset& dataset;
  BatcherOptions options;
  Position position;
  std::vector<int64_t> seq_lens;      // all of them, rising
  std::vector<Sequence> sequences;    // of the current epoch
  std::vector<SequenceGroup> groups;  // its micro-batches

  void plan_epoch(int64_t epoch) {
    const std::vector<size_t> rows = shuffled_rows(dataset, options.seed, epoch);
    switch (options.packing) {
      case Packing::kBestFit:
        sequences = best_fit(dataset, rows, options.seq_len);
        break;
      case Packing::kWrap:
        sequences = wrapped(dataset, rows, options.seq_len);
        break;
      case Packing::kNone:
        sequences = one_row_each(dataset, rows);
        break;
    }
    std::vector<int64_t> lengths;
    for (const Sequence& sequence : sequences) lengths.push_back(tokens(sequence));
    groups = group_sequences(lengths, seq_lens, options.batch);
    position = {epoch, 0};
  }

  int64_t batches() const { return static_cast<int64_t>(groups.size()); }

  static int64_t tokens(const Sequence& sequence) {
    int64_t count = 0;
    for (const Piece& piece : sequence) count += piece.length;
    return count;
  }

  // Rows of the document whose next token carries a label.
  int64_t loss_rows(const Sequence& sequence) const {
    int64_t count = 0;
    for (const Piece& piece : sequence) {
      const std::vector<int32_t>& labels = dataset.rows[piece.row].labels;
      for (int64_t i = 1; i < piece.length; ++i) count += labels[piece.begin + i] != kNoLoss;
    }
    return count;
  }

  void write(const Sequence& sequence, int64_t at, Batch& batch) const {
    int32_t segment = 0;
    for (const Piece& piece : sequence) {
      const TokenRow& row = dataset.rows[piece.row];
      for (int64_t i = 0; i < piece.length; ++i, ++at) {
        batch.input_ids[at] = row.input_ids[piece.begin + i];
        batch.labels[at] = row.labels[piece.begin + i];
        batch.segments[at] = segment;
        batch.positions[at] = static_cast<int32_t>(i);
      }
      ++segment;
    }
    batch.num_documents += segment;
  }
};

Batcher::Batcher(const Dataset& dataset, BatcherOptions options)
    : state_(new State{dataset, options, {}, options.shorter, {}, {}}) {
  state_->seq_lens.push_back(options.seq_len);
  NPU_CHECK(state_->seq_lens[0] > 0 && options.batch > 0, "sizes of a batch must be positive");
  NPU_CHECK(std::is_sorted(state_->seq_lens.begin(), state_->seq_lens.end()), "lengths must rise");
  bool any = false;
  for (const TokenRow& row : dataset.rows) {
    if (row.dropped) continue;
    any = true;
    NPU_CHECK(options.packing == Packing::kWrap ||
                  static_cast<int64_t>(row.input_ids.size()) <= options.seq_len,
              row.where + " is longer than a sequence");
  }
  if (!any)
    fail_input("data", "no row has a trained token",
               std::to_string(dataset.rows.size()) + " rows, all of them dropped",
               "a larger sequence length may keep the responses");
  state_->plan_epoch(0);
}

Batcher::~Batcher() = default;

Batch Batcher::next() {
  State& s = *state_;
  if (s.position.batch_in_epoch == s.batches()) s.plan_epoch(s.position.epoch + 1);
  const SequenceGroup& group = s.groups[static_cast<size_t>(s.position.batch_in_epoch++)];
  Batch batch = padding_batch(s.options.batch, group.seq_len, s.options.pad_id);
  for (size_t i = 0; i < group.sequences.size(); ++i)
    s.write(s.sequences[group.sequences[i]], static_cast<int64_t>(i) * group.seq_len, batch);
  return batch;
}

Batcher::Position Batcher::position() const { return state_->position; }

void Batcher::seek(Position position) {
  if (position.epoch < 0)
    fail_input("data", "a position in the data has a negative epoch",
               std::to_string(position.epoch));
  if (position.epoch != state_->position.epoch) state_->plan_epoch(position.epoch);
  if (position.batch_in_epoch < 0 || position.batch_in_epoch > state_->batches())
    fail_input("data", "the position lies outside the epoch",
               "batch " + std::to_string(position.batch_in_epoch) + " of " +
                   std::to_string(state_->batches()),
               "resume with the data, seed, packing and sizes of the first run");
  state_->position = position;
}

int64_t Batcher::batches_per_epoch() const { return state_->batches(); }

double Batcher::fill_ratio() const {
  int64_t tokens = 0, room = 0;
  for (const Sequence& sequence : state_->sequences) tokens += State::tokens(sequence);
  for (const SequenceGroup& group : state_->groups) room += state_->options.batch * group.seq_len;
  return static_cast<double>(tokens) / static_cast<double>(room);
}

std::vector<Batcher::Bucket> Batcher::buckets() const {
  const State& s = *state_;
  std::vector<Bucket> buckets;
  for (auto length = s.seq_lens.rbegin(); length != s.seq_lens.rend(); ++length) {
    Bucket& bucket = buckets.emplace_back();
    bucket.seq_len = *length;
    for (const SequenceGroup& group : s.groups) {
      if (group.seq_len != *length) continue;
      int64_t& loss_rows = bucket.loss_rows.emplace_back(0);
      for (const size_t sequence : group.sequences) {
        loss_rows += s.loss_rows(s.sequences[sequence]);
        bucket.documents += static_cast<int64_t>(s.sequences[sequence].size());
      }
      bucket.sequences += static_cast<int64_t>(group.sequences.size());
    }
  }
  return buckets;
}

}  // namespace npu
