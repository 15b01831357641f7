// SHA-256 (libcrypto), the only digest of this program: cache keys, blobs, data digests.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace npu {

// Incremental digest; hex() ends it.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  std::string hex();  // 64 lower-case hex digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::string_view text);
std::string sha256_hex(std::span<const std::byte> bytes);

}  // namespace npu
