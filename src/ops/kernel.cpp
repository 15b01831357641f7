// Shared pieces of the rows' kernels.
#include "ops/kernel.h"

#include <cstring>

namespace npu::ops {

F32Input::F32Input(const Tensor& tensor)
    : widened_(tensor.dtype() == DType::kF32 ? tensor : tensor.to(DType::kF32)),
      values_(widened_.values<float>()) {}

F32Output::F32Output(Tensor& tensor) : tensor_(tensor) {
  if (tensor.dtype() == DType::kF32) {
    values_ = tensor.mutable_values<float>();
  } else {
    wide_.resize(static_cast<size_t>(tensor.size()));
    values_ = wide_;
  }
}

void F32Output::store() {
  if (tensor_.dtype() == DType::kF32) return;
  NPU_CHECK(is_float(tensor_.dtype()), "a float result");
  const bool bf16 = tensor_.dtype() == DType::kBF16;
  const std::span<uint16_t> out = tensor_.mutable_values<uint16_t>();
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = bf16 ? bf16_from_f32(wide_[i]) : f16_from_f32(wide_[i]);
  }
}

std::vector<int64_t> integer_values(const Tensor& tensor) {
  const auto widen = [](auto values) { return std::vector<int64_t>(values.begin(), values.end()); };
  switch (tensor.dtype()) {
    case DType::kI64:
      return widen(tensor.values<int64_t>());
    case DType::kI32:
      return widen(tensor.values<int32_t>());
    default:
      return widen(tensor.values<uint8_t>());
  }
}

Strides strides_of(const Shape& shape) {
  Strides strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

Strides broadcast_strides(const Shape& shape, const Shape& out) {
  Strides strides = strides_of(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1 && out[d] != 1) strides[d] = 0;
  }
  return strides;
}

namespace {

template <class T>
void copy_elements(const Shape& shape, const StridedBytes<const std::byte>& from,
                   const StridedBytes<std::byte>& to) {
  const T* source = reinterpret_cast<const T*>(from.data);
  T* target = reinterpret_cast<T*>(to.data);
  const int64_t source_step = inner_stride(from.strides);
  const int64_t target_step = inner_stride(to.strides);
  for_each_row<2>(shape, {from.strides, to.strides}, [&](const auto& offsets, int64_t n) {
    const T* read = source + offsets[0];
    T* write = target + offsets[1];
    if (source_step == 1 && target_step == 1) {
      std::memcpy(write, read, static_cast<size_t>(n) * sizeof(T));
      return;
    }
    for (int64_t i = 0; i < n; ++i) write[i * target_step] = read[i * source_step];
  });
}

}  // namespace

void copy_strided(const Shape& shape, size_t element_bytes,
                  const StridedBytes<const std::byte>& from, const StridedBytes<std::byte>& to) {
  switch (element_bytes) {
    case 1:
      return copy_elements<uint8_t>(shape, from, to);
    case 2:
      return copy_elements<uint16_t>(shape, from, to);
    case 4:
      return copy_elements<uint32_t>(shape, from, to);
    default:
      return copy_elements<uint64_t>(shape, from, to);
  }
}

}  // namespace npu::ops
