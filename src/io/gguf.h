// GGUF, versions 2 and 3: metadata and a table of tensors, read as a hostile file. What the keys
// and names mean for a model is gguf_model.h's concern.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/file.h"
#include "tensor/tensor.h"

namespace npu {

// Element types that are read; the numbers are the format's.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ6_K = 14,
  kBF16 = 30,
};

struct GgmlTypeInfo {
  GgmlType type;
  std::string_view name;
  int64_t block_elements;  // consecutive elements of a row that share a block
  int64_t block_bytes;
};
// Null for a type that is not implemented.
const GgmlTypeInfo* find_ggml_type(uint32_t type);

// `out` = the values of `blocks`, in f32 arithmetic as the format's reference does it (scale·q +
// min, no fused multiply-add). Sizes must agree: whole blocks.
void dequantize(GgmlType type, std::span<const std::byte> blocks, std::span<float> out);

using GgufValue = std::variant<uint64_t, int64_t, float, double, bool, std::string,
                               std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;

struct GgufTensor {
  std::string name;
  GgmlType type;
  Shape shape;       // outermost first, the reverse of the file's order
  size_t begin = 0;  // bytes from the start of the file
  size_t bytes = 0;
};

// Parsed metadata with typed access; `where` names the file in errors.
struct Gguf {
  std::string where;
  uint32_t version = 0;
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;  // in file order

  const GgufTensor* find_tensor(std::string_view name) const;
  bool has(std::string_view key) const { return metadata.contains(key); }
  // The value; absent without a fallback, or of another type: UserError.
  int64_t whole(std::string_view key, std::optional<int64_t> fallback = std::nullopt) const;
  double number(std::string_view key, std::optional<double> fallback = std::nullopt) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::optional<std::string> fallback = std::nullopt) const;
  const std::vector<std::string>& texts(std::string_view key) const;
  const std::vector<int64_t>& wholes(std::string_view key) const;
};

// Reads everything but the tensors' bytes. Refused beyond what the format demands: arrays in
// arrays, duplicate keys or names, overlapping tensors, strings that are not UTF-8. Throws
// UserError.
Gguf parse_gguf(std::span<const std::byte> file, std::string_view where);

}  // namespace npu
