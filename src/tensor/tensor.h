// A shape and the bytes behind it. Copying a Tensor shares the bytes; nothing here computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "tensor/dtype.h"

namespace npu {

using Shape = std::vector<int64_t>;  // row major, outermost first; {} is a scalar

int64_t num_elements(const Shape& shape);
std::string shape_text(const Shape& shape);  // "[128,576]"

// Alignment of owned tensors and device buffers: page size, which some runtimes need for zero copy.
inline constexpr size_t kBufferAlignment = 4096;

// An aligned, zero-filled block; std::bad_alloc when there is no memory for it.
std::shared_ptr<std::byte> allocate_aligned(size_t bytes);

class Tensor {
 public:
  Tensor() = default;
  // Owned memory, zero-filled, aligned to kBufferAlignment.
  Tensor(DType dtype, Shape shape);
  // Memory owned by `owner` (a mapped file, a device buffer), at least shape × dtype bytes.
  Tensor(DType dtype, Shape shape, std::shared_ptr<const void> owner, const std::byte* data);
  // Wraps memory that the caller keeps alive and may write through.
  static Tensor borrow(DType dtype, Shape shape, void* data);

  static Tensor from_f32(Shape shape, std::span<const float> values);
  static Tensor from_i32(Shape shape, std::span<const int32_t> values);
  static Tensor scalar_f32(float value) { return from_f32({}, {&value, 1}); }

  bool defined() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t size() const { return num_elements(shape_); }
  size_t bytes() const { return static_cast<size_t>(size()) * dtype_bytes(dtype_); }
  const std::byte* data() const { return data_; }
  std::byte* mutable_data() {
    NPU_CHECK(writable_, "tensor is a read-only view");
    return const_cast<std::byte*>(data_);
  }

  // Typed access; T must match the dtype's storage (float, uint16_t, int32_t, int64_t, uint8_t).
  template <class T>
  std::span<const T> values() const {
    check_type(sizeof(T));
    return {reinterpret_cast<const T*>(data_), static_cast<size_t>(size())};
  }
  template <class T>
  std::span<T> mutable_values() {
    check_type(sizeof(T));
    return {reinterpret_cast<T*>(mutable_data()), static_cast<size_t>(size())};
  }

  // The same bytes under another shape of equal size.
  Tensor reshaped(Shape shape) const;
  // Rows [begin, end) of the outermost dimension, sharing bytes.
  Tensor rows(int64_t begin, int64_t end) const;
  Tensor clone() const;
  // A new tensor with every element converted (round to nearest even; f→i truncates).
  Tensor to(DType dtype) const;

 private:
  void check_type(size_t element_bytes) const;

  DType dtype_ = DType::kF32;
  Shape shape_;
  std::shared_ptr<const void> owner_;
  const std::byte* data_ = nullptr;
  bool writable_ = false;
};

// Element i of a numeric tensor as double, for slow generic code and tests.
double element(const Tensor& tensor, int64_t index);
void set_element(Tensor& tensor, int64_t index, double value);

// Differences between two tensors of equal shape, accumulated in double.
struct Difference {
  double max_abs = 0;  // largest |a-b|
  double rel_l2 = 0;   // ‖a-b‖₂ / ‖b‖₂ (0 when both are zero, inf when only b is)
  double cosine = 1;   // ⟨a,b⟩ / (‖a‖‖b‖), 1 when both are zero
  bool finite = true;  // no NaN or infinity in either
};
Difference difference(const Tensor& a, const Tensor& reference);

}  // namespace npu
