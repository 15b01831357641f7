// SHA-256 by libcrypto.
#include "base/hash.h"

#include <openssl/evp.h>

#include <array>

#include "base/error.h"

namespace npu {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  State() = default;
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  NPU_CHECK(state_->context != nullptr, "libcrypto gave no digest context");
  NPU_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1,
            "libcrypto has no SHA-256");
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  NPU_CHECK(state_ != nullptr, "update() after hex()");
  NPU_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1, "digest update");
}

void Sha256::update(std::string_view text) { update(std::as_bytes(std::span(text))); }

std::string Sha256::hex() {
  NPU_CHECK(state_ != nullptr, "hex() called twice");
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  NPU_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &size) == 1, "digest end");
  state_.reset();
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(size * 2);
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  Sha256 digest;
  digest.update(bytes);
  return digest.hex();
}

std::string sha256_hex(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

}  // namespace npu
