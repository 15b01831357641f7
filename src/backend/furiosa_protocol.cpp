// Frames and their fields as bytes.
#include "backend/furiosa_protocol.h"

namespace npu::furiosa {
namespace {

constexpr size_t kNumberBytes = 8;

void put(std::string& bytes, uint64_t number) {
  for (size_t i = 0; i < kNumberBytes; ++i) bytes += static_cast<char>(number >> (8 * i));
}

uint64_t number_at(std::string_view bytes, size_t at) {
  uint64_t number = 0;
  for (size_t i = 0; i < kNumberBytes; ++i) {
    number |= uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return number;
}

}  // namespace

std::string encode(const Frame& frame) {
  std::string bytes;
  for (const uint64_t number : {kMagic, frame.kind, frame.number, uint64_t{frame.body.size()}}) {
    put(bytes, number);
  }
  return bytes + frame.body;
}

Result<std::optional<Frame>> take_frame(std::string& bytes) {
  if (bytes.size() < kHeaderBytes) return std::optional<Frame>();
  Frame frame{number_at(bytes, kNumberBytes), number_at(bytes, 2 * kNumberBytes), ""};
  const uint64_t length = number_at(bytes, 3 * kNumberBytes);
  if (number_at(bytes, 0) != kMagic || length > kMostBodyBytes) {
    return Error{ErrorKind::kRetriable, "device worker", "talks in no known way", "", ""};
  }
  if (bytes.size() - kHeaderBytes < length) return std::optional<Frame>();
  frame.body = bytes.substr(kHeaderBytes, length);
  bytes.erase(0, kHeaderBytes + length);
  return std::optional<Frame>(std::move(frame));
}

void FieldWriter::operator()(uint64_t number) { put(bytes, number); }

void FieldWriter::operator()(std::string& text) {
  put(bytes, text.size());
  bytes += text;
}

void FieldReader::operator()(uint64_t& number) {
  good_ = good_ && rest_.size() >= kNumberBytes;
  if (!good_) return;
  number = number_at(rest_, 0);
  rest_.remove_prefix(kNumberBytes);
}

void FieldReader::operator()(std::string& text) {
  uint64_t size = 0;
  (*this)(size);
  good_ = good_ && size <= rest_.size();
  if (!good_) return;
  text = rest_.substr(0, size);
  rest_.remove_prefix(size);
}

}  // namespace npu::furiosa
