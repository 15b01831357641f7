// Scoring documents with a runner: packed like training rows, results per document.
#include "cli/scoring.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace npu {
namespace {

// Where a document lies in a packed batch.
struct Placed {
  size_t document;
  int64_t first_row;
};

// Packs documents in order of falling length, each into the open sequence with the least room that
// still holds it; a batch is run as soon as B sequences are full or nothing is left.
std::vector<std::vector<size_t>> pack_sequences(const std::vector<ScoreDocument>& documents,
                                                int64_t seq_len) {
  std::vector<size_t> order(documents.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return documents[a].input_ids.size() > documents[b].input_ids.size();
  });
  std::vector<std::vector<size_t>> sequences;
  std::multimap<int64_t, size_t> room;  // free tokens → sequence
  for (const size_t document : order) {
    const int64_t length = static_cast<int64_t>(documents[document].input_ids.size());
    NPU_CHECK(length <= seq_len, "document longer than a sequence");
    const auto fit = room.lower_bound(length);
    size_t sequence = sequences.size();
    int64_t left = seq_len - length;
    if (fit != room.end()) {
      sequence = fit->second;
      left = fit->first - length;
      room.erase(fit);
    } else {
      sequences.emplace_back();
    }
    sequences[sequence].push_back(document);
    room.emplace(left, sequence);
  }
  return sequences;
}

void place(const ScoreDocument& document, int64_t first_row, int32_t segment, Batch& batch) {
  for (size_t i = 0; i < document.input_ids.size(); ++i) {
    const size_t row = static_cast<size_t>(first_row) + i;
    batch.input_ids[row] = document.input_ids[i];
    batch.segments[row] = segment;
    batch.positions[row] = static_cast<int32_t>(i);
  }
  ++batch.num_documents;
}

}  // namespace

ScoreDocument loss_document(const TokenRow& row) {
  ScoreDocument document{row.input_ids, {}};
  for (size_t i = 0; i + 1 < row.input_ids.size(); ++i) {
    if (row.labels[i + 1] == kNoLoss) continue;
    document.targets.push_back({static_cast<int32_t>(i), row.labels[i + 1]});
  }
  return document;
}

std::vector<std::vector<TokenScore>> score_documents(
    ModelRunner& runner, const std::vector<ScoreDocument>& documents,
    const std::function<void(size_t, size_t)>& progress) {
  const int64_t seq_len = runner.seq_len(), batch_size = runner.batch_size();
  const auto sequences = pack_sequences(documents, seq_len);
  std::vector<std::vector<TokenScore>> scores(documents.size());
  size_t done = 0;
  for (size_t first = 0; first < sequences.size(); first += static_cast<size_t>(batch_size)) {
    Batch batch = padding_batch(batch_size, seq_len);
    std::vector<RowTarget> targets;
    std::vector<size_t> owners;  // document of each target
    for (int64_t b = 0; b < batch_size && first + static_cast<size_t>(b) < sequences.size(); ++b) {
      int64_t next_row = b * seq_len;
      int32_t segment = 0;
      for (const size_t index : sequences[first + static_cast<size_t>(b)]) {
        const ScoreDocument& document = documents[index];
        place(document, next_row, segment++, batch);
        for (const RowTarget& t : document.targets) {
          targets.push_back({static_cast<int32_t>(next_row) + t.row, t.target});
          owners.push_back(index);
        }
        next_row += static_cast<int64_t>(document.input_ids.size());
        ++done;
      }
    }
    const std::vector<TokenScore> batch_scores = runner.score(batch, targets).take();
    for (size_t i = 0; i < owners.size(); ++i) scores[owners[i]].push_back(batch_scores[i]);
    if (progress) progress(done, documents.size());
  }
  return scores;
}

LossSum held_out_loss(ModelRunner& runner, const Dataset& dataset) {
  std::vector<ScoreDocument> documents;
  for (const TokenRow& row : dataset.rows) {
    if (!row.dropped) documents.push_back(loss_document(row));
  }
  LossSum loss;
  for (const auto& document : score_documents(runner, documents)) {
    for (const TokenScore& score : document) {
      loss.nats -= score.log_prob;
      ++loss.tokens;
    }
  }
  return loss;
}

}  // namespace npu
