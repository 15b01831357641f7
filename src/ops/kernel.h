// What the rows' kernels share: f32 views of float tensors, and walking over strided shapes.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "tensor/tensor.h"

namespace npu::ops {

// A float tensor read as f32; bf16 and f16 are widened once, f32 is used in place.
class F32Input {
 public:
  explicit F32Input(const Tensor& tensor);
  const float* data() const { return values_.data(); }
  std::span<const float> values() const { return values_; }

 private:
  Tensor widened_;
  std::span<const float> values_;
};

// Where a kernel writes f32 results; store() rounds them once into the tensor.
class F32Output {
 public:
  explicit F32Output(Tensor& tensor);
  float* data() { return values_.data(); }
  std::span<float> values() { return values_; }
  void store();

 private:
  Tensor& tensor_;
  std::vector<float> wide_;
  std::span<float> values_;
};

// Elements of an integer or truth-value tensor.
std::vector<int64_t> integer_values(const Tensor& tensor);

using Strides = std::vector<int64_t>;  // in elements, one per dimension

Strides strides_of(const Shape& shape);  // row major
// The same with 0 where `shape` has size 1 and `out` has not: the element is repeated.
Strides broadcast_strides(const Shape& shape, const Shape& out);

// Calls row(offsets, n) for each line of n elements along the last dimension of `shape`, in
// row-major order; offsets[i] is where the line starts in operand i.
template <size_t N, class Row>
void for_each_row(const Shape& shape, const std::array<Strides, N>& strides, Row&& row) {
  std::array<int64_t, N> offsets{};
  if (shape.empty()) return row(offsets, int64_t{1});
  Shape index(shape.size(), 0);
  while (true) {
    row(offsets, shape.back());
    size_t d = shape.size() - 1;
    for (; d > 0; --d) {
      const size_t dim = d - 1;
      for (size_t i = 0; i < N; ++i) offsets[i] += strides[i][dim];
      if (++index[dim] < shape[dim]) break;
      for (size_t i = 0; i < N; ++i) offsets[i] -= strides[i][dim] * shape[dim];
      index[dim] = 0;
    }
    if (d == 0) return;
  }
}

// Stride of the last dimension; 0 for scalars.
inline int64_t inner_stride(const Strides& strides) { return strides.empty() ? 0 : strides.back(); }

// One side of a copy: where it starts and how it strides over the copied shape.
template <class Byte>
struct StridedBytes {
  Byte* data;
  Strides strides;
};

// Copies `shape` elements of `element_bytes` (1, 2, 4 or 8) from one strided place to another.
void copy_strided(const Shape& shape, size_t element_bytes,
                  const StridedBytes<const std::byte>& from, const StridedBytes<std::byte>& to);

}  // namespace npu::ops
