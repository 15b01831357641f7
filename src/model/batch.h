// One micro-batch as the trainer takes it; src/io makes these from JSON lines.
#pragma once

#include <cstdint>
#include <vector>

namespace npu {

inline constexpr int32_t kNoLoss = -100;  // the label that carries no loss, as in Hugging Face

// B sequences of S tokens, row major. labels are not shifted (labels[i] belongs to input_ids[i]);
// a row's loss is taken where the *next* token of the same document has a label.
struct Batch {
  int64_t batch = 0;
  int64_t seq_len = 0;
  std::vector<int32_t> input_ids;  // [B·S]
  std::vector<int32_t> labels;     // [B·S]
  std::vector<int32_t> segments;   // [B·S] document number within its sequence; -1 is padding
  std::vector<int32_t> positions;  // [B·S] restart at each document
  int64_t num_documents = 0;

  int64_t rows() const { return batch * seq_len; }
};

// A row of the final hidden state and the token whose log-probability is asked of it.
struct RowTarget {
  int32_t row = 0;     // in [0, B·S)
  int32_t target = 0;  // token id
};
// The rows of a batch that carry loss, in order.
std::vector<RowTarget> loss_rows(const Batch& batch);

// An empty batch: padding everywhere.
Batch padding_batch(int64_t batch, int64_t seq_len, int32_t pad_id = 0);

}  // namespace npu
