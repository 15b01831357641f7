// Typed buffers on a device, and filling them without a copy where the device shares host memory.
#include "train/device_buffers.h"

#include <cstring>

namespace npu {

DeviceTensor allocate_tensor(Device& device, TensorType type, std::string_view what) {
  auto buffer = device.allocate(static_cast<size_t>(type.bytes()));
  if (!buffer.ok()) {
    Error error = buffer.error();
    error.where = std::string(what);
    throw UserError(std::move(error));
  }
  return {std::move(buffer).take(), std::move(type)};
}

Tensor read_tensor(Device& device, const DeviceTensor& source) {
  std::byte* memory = source.buffer->host_pointer();
  if (memory != nullptr) return Tensor::borrow(source.type.dtype, source.type.shape, memory);
  Tensor host(source.type.dtype, source.type.shape);
  device.download({host.mutable_data(), host.bytes()}, *source.buffer);
  return host;
}

void upload_tensor(Device& device, DeviceTensor& target, const Tensor& source) {
  NPU_CHECK(source.size() == num_elements(target.type.shape),
            shape_text(source.shape()) + " into " + target.type.text());
  fill_tensor(device, target, [&](Tensor& host) {
    const Tensor converted = source.dtype() == host.dtype() ? source : source.to(host.dtype());
    std::memcpy(host.mutable_data(), converted.data(), host.bytes());
  });
}

}  // namespace npu
