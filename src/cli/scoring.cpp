// Scoring documents with a runner: packed like training rows, results per document.
#include "cli/scoring.h"

#include "io/packing.h"

namespace npu {
namespace {

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

Result<std::vector<std::vector<TokenScore>>> score_documents(
    ModelRunner& runner, const std::vector<ScoreDocument>& documents,
    const std::function<bool(size_t, size_t)>& progress) {
  const int64_t batch_size = runner.batch_size();
  std::vector<int64_t> lengths;
  for (const ScoreDocument& d : documents) {
    lengths.push_back(static_cast<int64_t>(d.input_ids.size()));
  }
  const auto sequences = best_fit_bins(lengths, runner.seq_len());
  std::vector<int64_t> filled;
  for (const std::vector<size_t>& sequence : sequences) {
    int64_t& tokens = filled.emplace_back(0);
    for (const size_t index : sequence) tokens += lengths[index];
  }
  std::vector<std::vector<TokenScore>> scores(documents.size());
  size_t done = 0;
  for (const SequenceGroup& group : group_sequences(filled, runner.seq_lens(), batch_size)) {
    Batch batch = padding_batch(batch_size, group.seq_len);
    std::vector<RowTarget> targets;
    std::vector<size_t> owners;  // document of each target
    for (size_t b = 0; b < group.sequences.size(); ++b) {
      int64_t next_row = static_cast<int64_t>(b) * group.seq_len;
      int32_t segment = 0;
      for (const size_t index : sequences[group.sequences[b]]) {
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
    const Result<std::vector<TokenScore>> batch_scores = runner.score(batch, targets);
    if (!batch_scores.ok()) return batch_scores.error();
    for (size_t i = 0; i < owners.size(); ++i) {
      scores[owners[i]].push_back(batch_scores.value()[i]);
    }
    if (progress && !progress(done, documents.size())) break;
  }
  return scores;
}

Result<std::optional<LossSum>> held_out_loss(ModelRunner& runner, const Dataset& dataset,
                                             const std::function<bool()>& stop) {
  std::vector<ScoreDocument> documents;
  for (const TokenRow& row : dataset.rows) {
    if (!row.dropped) documents.push_back(loss_document(row));
  }
  bool stopped = false;
  const auto scores = score_documents(runner, documents, [&](size_t done, size_t total) {
    stopped = done < total && stop();
    return !stopped;
  });
  if (!scores.ok()) return scores.error();
  if (stopped) return std::optional<LossSum>();
  LossSum loss;
  for (const auto& document : scores.value()) {
    for (const TokenScore& score : document) {
      loss.nats -= score.log_prob;
      ++loss.tokens;
    }
  }
  return std::optional<LossSum>(loss);
}

}  // namespace npu
