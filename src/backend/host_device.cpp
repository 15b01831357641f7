// Buffers in host memory, shared by every backend whose device is the host.
#include "backend/host_device.h"

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace npu {
namespace {

class HostBuffer : public Buffer {
 public:
  HostBuffer(std::shared_ptr<const void> owner, std::byte* data, size_t bytes)
      : owner_(std::move(owner)), data_(data), bytes_(bytes) {}
  size_t bytes() const override { return bytes_; }
  std::byte* host_pointer() override { return data_; }

 private:
  std::shared_ptr<const void> owner_;
  std::byte* data_;
  size_t bytes_;
};

}  // namespace

void check_view(const Buffer& whole, size_t offset, size_t bytes) {
  NPU_CHECK(offset <= whole.bytes() && bytes <= whole.bytes() - offset,
            "view of " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                " leaves a buffer of " + std::to_string(whole.bytes()));
}

Result<std::shared_ptr<Buffer>> HostDevice::allocate(size_t bytes) {
  try {
    std::shared_ptr<std::byte> memory = allocate_aligned(bytes);
    std::byte* const data = memory.get();
    return std::shared_ptr<Buffer>(std::make_shared<HostBuffer>(std::move(memory), data, bytes));
  } catch (const std::bad_alloc&) {
    return Error{ErrorKind::kRetriable, "host memory", "is exhausted",
                 std::to_string(bytes) + " bytes wanted", "use a smaller --batch or --seq-len"};
  }
}

Result<std::shared_ptr<Buffer>> HostDevice::adopt(const Tensor& host) {
  if (reinterpret_cast<uintptr_t>(host.data()) % adopt_alignment_ == 0) {
    // The tensor keeps the memory alive. Parts only read adopted buffers, hence the const_cast.
    const auto owner = std::make_shared<const Tensor>(host);
    return std::shared_ptr<Buffer>(
        std::make_shared<HostBuffer>(owner, const_cast<std::byte*>(host.data()), host.bytes()));
  }
  Result<std::shared_ptr<Buffer>> copy = allocate(host.bytes());
  if (copy) upload(*copy.value(), {host.data(), host.bytes()});
  return copy;
}

std::shared_ptr<Buffer> HostDevice::view(std::shared_ptr<Buffer> whole, size_t offset,
                                         size_t bytes) {
  check_view(*whole, offset, bytes);
  std::byte* const data = whole->host_pointer() + offset;
  return std::make_shared<HostBuffer>(std::move(whole), data, bytes);
}

void HostDevice::upload(Buffer& to, std::span<const std::byte> from) {
  NPU_CHECK(from.size() <= to.bytes(), "upload is larger than its buffer");
  NPU_CHECK(!to.frozen(), "upload to a frozen buffer");
  if (!from.empty()) std::memcpy(to.host_pointer(), from.data(), from.size());
}

void HostDevice::download(std::span<std::byte> to, Buffer& from) {
  NPU_CHECK(to.size() <= from.bytes(), "download is larger than its buffer");
  if (!to.empty()) std::memcpy(to.data(), from.host_pointer(), to.size());
}

std::optional<Error> HostDevice::wait(Ticket) { return std::nullopt; }

}  // namespace npu
