// Rules about batches that the packer and the trainer share.
#include "model/batch.h"

#include <cstddef>

namespace npu {

std::vector<RowTarget> loss_rows(const Batch& batch) {
  std::vector<RowTarget> rows;
  for (int64_t b = 0; b < batch.batch; ++b) {
    for (int64_t s = 0; s + 1 < batch.seq_len; ++s) {
      const std::size_t row = static_cast<std::size_t>(b * batch.seq_len + s), next = row + 1;
      if (batch.segments[row] < 0 || batch.segments[row] != batch.segments[next]) continue;
      if (batch.labels[next] == kNoLoss) continue;
      rows.push_back({static_cast<int32_t>(row), batch.labels[next]});
    }
  }
  return rows;
}

Batch padding_batch(int64_t batch, int64_t seq_len, int32_t pad_id) {
  const std::size_t rows = static_cast<std::size_t>(batch * seq_len);
  Batch out;
  out.batch = batch;
  out.seq_len = seq_len;
  out.input_ids.assign(rows, pad_id);
  out.labels.assign(rows, kNoLoss);
  out.segments.assign(rows, -1);
  out.positions.assign(rows, 0);
  return out;
}

}  // namespace npu
