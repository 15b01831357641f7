// Scoring documents with a runner: packed like training rows, results per document.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "io/dataset.h"
#include "train/runner.h"

namespace npu {

struct ScoreDocument {
  std::vector<int32_t> input_ids;
  std::vector<RowTarget> targets;  // row counts from the document's first token
};

// The document of a training row: one target for each label.
ScoreDocument loss_document(const TokenRow& row);

// One list of scores per document, in their order. Documents must fit the runner's seq_len.
// `progress(done, total)` counts documents after each batch; once it says false nothing more is
// scored, and the documents that are left have no scores. Errors of the device are values.
Result<std::vector<std::vector<TokenScore>>> score_documents(
    ModelRunner& runner, const std::vector<ScoreDocument>& documents,
    const std::function<bool(size_t done, size_t total)>& progress = nullptr);

// Σ −log p over all trained tokens of the rows that were not dropped. Nothing when `stop`, asked
// between batches, said true before the end.
Result<std::optional<LossSum>> held_out_loss(ModelRunner& runner, const Dataset& dataset,
                                             const std::function<bool()>& stop);

}  // namespace npu
