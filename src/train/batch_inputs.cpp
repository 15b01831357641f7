// What the host prepares of a micro-batch.
#include "train/batch_inputs.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace npu {
namespace {

// Bits of `value` in a 16- or 32-bit float dtype.
uint32_t float_bits(double value, DType dtype) {
  Tensor one(dtype, {1});
  set_element(one, 0, value);
  uint32_t bits = 0;
  std::memcpy(&bits, one.data(), dtype_bytes(dtype));
  return bits;
}

template <class T>
void fill_mask(const Batch& batch, std::span<T> mask, T open, T closed) {
  const int64_t s = batch.seq_len;
  std::fill(mask.begin(), mask.end(), closed);
  for (int64_t b = 0; b < batch.batch; ++b) {
    const int32_t* segment = batch.segments.data() + b * s;
    int64_t first = 0;  // first row of row i's document
    for (int64_t i = 0; i < s; ++i) {
      if (i == 0 || segment[i] != segment[i - 1] || segment[i] < 0) first = i;
      T* row = mask.data() + (b * s + i) * s;
      std::fill(row + first, row + i + 1, open);
    }
  }
}

}  // namespace

void embedding_rows(const Tensor& embedding_VH, const Batch& batch, DType compute, Tensor& x_MH) {
  const int64_t vocab = embedding_VH.shape()[0];
  const size_t row_bytes = embedding_VH.bytes() / static_cast<size_t>(vocab);
  Tensor gathered = embedding_VH.dtype() == x_MH.dtype() && compute == x_MH.dtype()
                        ? x_MH
                        : Tensor(embedding_VH.dtype(), x_MH.shape());
  for (size_t row = 0; row < batch.input_ids.size(); ++row) {
    const int32_t id = batch.input_ids[row];
    NPU_CHECK(id >= 0 && id < vocab, "token id " + std::to_string(id));
    std::memcpy(gathered.mutable_data() + row * row_bytes,
                embedding_VH.data() + static_cast<size_t>(id) * row_bytes, row_bytes);
  }
  if (gathered.data() == x_MH.data()) return;
  const Tensor converted = gathered.to(compute).to(x_MH.dtype());
  std::memcpy(x_MH.mutable_data(), converted.data(), converted.bytes());
}

RopeRows::RopeRows(const ModelConfig& config, int64_t positions, DType dtype) {
  std::vector<int32_t> all(static_cast<size_t>(positions));
  std::iota(all.begin(), all.end(), 0);
  const RopeTables tables = rope_tables(config, all);
  cos_ = tables.cos.to(dtype);
  sin_ = tables.sin.to(dtype);
}

void RopeRows::fill(const Tensor& table, const Batch& batch, Tensor& rows) {
  const size_t row_bytes = table.bytes() / static_cast<size_t>(table.shape()[0]);
  NPU_CHECK(rows.bytes() == batch.positions.size() * row_bytes && rows.dtype() == table.dtype(),
            "RoPE rows of another shape than the batch's");
  std::byte* to = rows.mutable_data();
  for (const int32_t position : batch.positions) {
    NPU_CHECK(position >= 0 && position < table.shape()[0], "position " + std::to_string(position));
    std::memcpy(to, table.data() + static_cast<size_t>(position) * row_bytes, row_bytes);
    to += row_bytes;
  }
}

void attention_mask(const Batch& batch, Tensor& mask) {
  const DType dtype = mask.dtype();
  const uint32_t closed = float_bits(mask_value(dtype), dtype);
  if (dtype_bytes(dtype) == 4) {
    fill_mask<float>(batch, mask.mutable_values<float>(), 0.0f, std::bit_cast<float>(closed));
  } else {
    fill_mask<uint16_t>(batch, mask.mutable_values<uint16_t>(), 0, static_cast<uint16_t>(closed));
  }
}

void loss_row_input(std::span<const RowTarget> targets, Tensor& rows) {
  std::memset(rows.mutable_data(), 0, rows.bytes());
  const int64_t columns = rows.shape().size() == 2 ? rows.shape()[1] : 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i);
    if (columns == 0) {
      set_element(rows, at, targets[i].row);
    } else {
      set_element(rows, at * columns + targets[i].row, 1);
    }
  }
}

}  // namespace npu
