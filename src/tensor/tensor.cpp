// Memory behind tensors, and element-wise conversion between dtypes.
#include "tensor/tensor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>

namespace npu {

int64_t num_elements(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    NPU_CHECK(extent >= 0 && !__builtin_mul_overflow(count, extent, &count),
              "shape " + shape_text(shape));
  }
  return count;
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ',';
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

namespace {

constexpr size_t kFromKernel = size_t{1} << 20, kHugePage = size_t{2} << 20;

// The kernel's pages are zero already, and are given when touched. Large blocks start on a huge
// page and ask for them: reading weights once a pass is bound by address translation otherwise.
std::shared_ptr<std::byte> map_pages(size_t size) {
  const size_t slack = size >= kHugePage ? kHugePage : 0, whole = size + slack;
  void* memory = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* const base = static_cast<std::byte*>(memory);
  const size_t ahead =
      slack == 0 ? 0 : (kHugePage - reinterpret_cast<uintptr_t>(base) % kHugePage) % kHugePage;
#if defined(MADV_HUGEPAGE)
  if (slack != 0)
    (void)::madvise(base + ahead, size, MADV_HUGEPAGE);  // a wish: refusal costs speed only
#endif
  return {base + ahead, [base, whole](std::byte*) { ::munmap(base, whole); }};
}

}  // namespace

std::shared_ptr<std::byte> allocate_aligned(size_t bytes) {
  const size_t size = std::max((bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment,
                               kBufferAlignment);
  if (size < bytes) throw std::bad_alloc();  // wrapped around
  if (size >= kFromKernel) return map_pages(size);
  void* memory = std::aligned_alloc(kBufferAlignment, size);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, size);
  return {static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); }};
}

Tensor::Tensor(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)) {
  auto memory = allocate_aligned(bytes());
  data_ = memory.get();
  owner_ = std::move(memory);
  writable_ = true;
}

Tensor::Tensor(DType dtype, Shape shape, std::shared_ptr<const void> owner, const std::byte* data)
    : dtype_(dtype), shape_(std::move(shape)), owner_(std::move(owner)), data_(data) {}

Tensor Tensor::borrow(DType dtype, Shape shape, void* data) {
  Tensor tensor(dtype, std::move(shape), nullptr, static_cast<const std::byte*>(data));
  tensor.writable_ = true;
  return tensor;
}

Tensor Tensor::from_f32(Shape shape, std::span<const float> values) {
  Tensor tensor(DType::kF32, std::move(shape));
  NPU_CHECK(values.size() == static_cast<size_t>(tensor.size()), shape_text(tensor.shape()));
  if (!values.empty()) std::memcpy(tensor.mutable_data(), values.data(), values.size_bytes());
  return tensor;
}

Tensor Tensor::from_i32(Shape shape, std::span<const int32_t> values) {
  Tensor tensor(DType::kI32, std::move(shape));
  NPU_CHECK(values.size() == static_cast<size_t>(tensor.size()), shape_text(tensor.shape()));
  if (!values.empty()) std::memcpy(tensor.mutable_data(), values.data(), values.size_bytes());
  return tensor;
}

void Tensor::check_type(size_t element_bytes) const {
  NPU_CHECK(defined(), "tensor without memory");
  NPU_CHECK(element_bytes == dtype_bytes(dtype_), std::string(dtype_name(dtype_)));
  NPU_CHECK(reinterpret_cast<uintptr_t>(data_) % element_bytes == 0, "unaligned tensor");
}

Tensor Tensor::reshaped(Shape shape) const {
  NPU_CHECK(num_elements(shape) == size(), shape_text(shape_) + " to " + shape_text(shape));
  Tensor result = *this;
  result.shape_ = std::move(shape);
  return result;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  NPU_CHECK(!shape_.empty() && 0 <= begin && begin <= end && end <= shape_[0],
            std::to_string(begin) + ":" + std::to_string(end) + " of " + shape_text(shape_));
  Tensor result = *this;
  const size_t row_bytes = shape_[0] == 0 ? 0 : bytes() / static_cast<size_t>(shape_[0]);
  result.shape_[0] = end - begin;
  result.data_ += static_cast<size_t>(begin) * row_bytes;
  return result;
}

Tensor Tensor::clone() const {
  Tensor result(dtype_, shape_);
  if (bytes() > 0) std::memcpy(result.mutable_data(), data_, bytes());
  return result;
}

namespace {

// Truncates; out of range saturates and NaN gives 0, where the language leaves it undefined.
template <class T, class F>
T integer_from(F value) {
  if (std::isnan(value)) return 0;
  // 2^digits is exact in F, the largest T need not be.
  const F above = std::ldexp(F{1}, std::numeric_limits<T>::digits);
  if (value >= above) return std::numeric_limits<T>::max();
  if (value <= static_cast<F>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  return static_cast<T>(value);
}

// A codec loads a stored element as float or int64_t and stores either.
struct F32Codec {
  using Storage = float;
  static float load(float stored) { return stored; }
  template <class V>
  static float store(V value) {
    return static_cast<float>(value);
  }
};

struct Bf16Codec {
  using Storage = uint16_t;
  static float load(uint16_t stored) { return f32_from_bf16(stored); }
  template <class V>
  static uint16_t store(V value) {
    return bf16_from_f32(static_cast<float>(value));
  }
};

struct F16Codec {
  using Storage = uint16_t;
  static float load(uint16_t stored) { return f32_from_f16(stored); }
  template <class V>
  static uint16_t store(V value) {
    return f16_from_f32(static_cast<float>(value));
  }
};

template <class T>
struct IntegerCodec {
  using Storage = T;
  static int64_t load(T stored) { return stored; }
  template <class V>
  static T store(V value) {
    if constexpr (std::is_integral_v<V>) {
      return static_cast<T>(value);
    } else {
      return integer_from<T>(value);
    }
  }
};

struct PredCodec {
  using Storage = uint8_t;
  static int64_t load(uint8_t stored) { return stored != 0; }
  template <class V>
  static uint8_t store(V value) {
    return value != V{0};
  }
};

template <class Fn>
decltype(auto) with_codec(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn(F32Codec{});
    case DType::kBF16:
      return fn(Bf16Codec{});
    case DType::kF16:
      return fn(F16Codec{});
    case DType::kI64:
      return fn(IntegerCodec<int64_t>{});
    case DType::kI32:
      return fn(IntegerCodec<int32_t>{});
    case DType::kU8:
      return fn(IntegerCodec<uint8_t>{});
    case DType::kPred:
      break;
  }
  return fn(PredCodec{});
}

// Bytes may be unaligned (mapped files), so elements are read by memcpy.
template <class Codec>
auto load_element(const std::byte* data, int64_t index) {
  typename Codec::Storage stored;
  std::memcpy(&stored, data + static_cast<size_t>(index) * sizeof stored, sizeof stored);
  return Codec::load(stored);
}

}  // namespace

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return clone();
  Tensor result(dtype, shape_);
  std::byte* out = result.mutable_data();
  const int64_t count = size();
  with_codec(dtype_, [&](auto from) {
    with_codec(dtype, [&](auto to) {
      auto* stored = reinterpret_cast<typename decltype(to)::Storage*>(out);
      for (int64_t i = 0; i < count; ++i) {
        stored[i] = decltype(to)::store(load_element<decltype(from)>(data_, i));
      }
    });
  });
  return result;
}

double element(const Tensor& tensor, int64_t index) {
  NPU_CHECK(0 <= index && index < tensor.size(), std::to_string(index));
  return with_codec(tensor.dtype(), [&](auto codec) {
    return static_cast<double>(load_element<decltype(codec)>(tensor.data(), index));
  });
}

void set_element(Tensor& tensor, int64_t index, double value) {
  NPU_CHECK(0 <= index && index < tensor.size(), std::to_string(index));
  with_codec(tensor.dtype(), [&](auto codec) {
    using Codec = decltype(codec);
    const typename Codec::Storage stored = Codec::store(value);
    std::memcpy(tensor.mutable_data() + static_cast<size_t>(index) * sizeof stored, &stored,
                sizeof stored);
  });
}

Difference difference(const Tensor& a, const Tensor& reference) {
  NPU_CHECK(a.shape() == reference.shape(),
            shape_text(a.shape()) + " and " + shape_text(reference.shape()));
  Difference result;
  double difference_squared = 0, a_squared = 0, b_squared = 0, product = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    const double x = element(a, i), y = element(reference, i);
    if (!std::isfinite(x) || !std::isfinite(y)) result.finite = false;
    const double d = std::abs(x - y);
    if (!(d <= result.max_abs)) result.max_abs = d;  // a NaN sticks
    difference_squared += d * d;
    a_squared += x * x;
    b_squared += y * y;
    product += x * y;
  }
  if (difference_squared != 0) {
    result.rel_l2 = b_squared > 0 ? std::sqrt(difference_squared) / std::sqrt(b_squared)
                                  : std::numeric_limits<double>::infinity();
  }
  if (a_squared != 0 || b_squared != 0) {
    const double norms = std::sqrt(a_squared) * std::sqrt(b_squared);
    result.cosine = norms > 0 ? product / norms : 0;
  }
  return result;
}

}  // namespace npu
