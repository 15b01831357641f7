// The half of a Device that every runtime with host-pointer buffers shares.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace npu {

// A window of another buffer that a caller asks a device for lies within it.
void check_view(const Buffer& whole, size_t offset, size_t bytes);

// Buffers are aligned host memory. submit() of a derived class runs to the end, so wait() has
// nothing left to do.
class HostDevice : public Device {
 public:
  // `adopt_alignment`: adopted memory that is less aligned is copied instead.
  explicit HostDevice(size_t adopt_alignment) : adopt_alignment_(adopt_alignment) {}

  Result<std::shared_ptr<Buffer>> allocate(size_t bytes) override;
  Result<std::shared_ptr<Buffer>> adopt(const Tensor& host) override;
  std::shared_ptr<Buffer> view(std::shared_ptr<Buffer> whole, size_t offset, size_t bytes) override;
  void upload(Buffer& to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, Buffer& from) override;
  std::optional<Error> wait(Ticket ticket) override;

 private:
  size_t adopt_alignment_;
};

}  // namespace npu
