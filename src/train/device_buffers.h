// Typed buffers on a device, and filling them without a copy where the device shares host memory.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace npu {

// A buffer with the type of the value it holds.
struct DeviceTensor {
  std::shared_ptr<Buffer> buffer;
  TensorType type;
};

// Out of memory is a kRetriable UserError that names `what`.
DeviceTensor allocate_tensor(Device& device, TensorType type, std::string_view what);

// Calls fill(tensor) with host memory of the value's type, then makes the device see it: in place
// where host_pointer() is not null, through a staging copy otherwise.
template <class Fill>
void fill_tensor(Device& device, DeviceTensor& target, const Fill& fill) {
  std::byte* memory = target.buffer->host_pointer();
  Tensor host = memory != nullptr ? Tensor::borrow(target.type.dtype, target.type.shape, memory)
                                  : Tensor(target.type.dtype, target.type.shape);
  fill(host);
  if (memory == nullptr) device.upload(*target.buffer, {host.data(), host.bytes()});
}

// The value as host memory: borrowed where possible (valid until the buffer is written again).
Tensor read_tensor(Device& device, const DeviceTensor& source);

// Converts element by element into the value's dtype.
void upload_tensor(Device& device, DeviceTensor& target, const Tensor& source);

}  // namespace npu
