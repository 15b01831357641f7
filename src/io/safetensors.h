// The safetensors format (8-byte length, JSON header, bytes), read as a hostile file.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "tensor/tensor.h"

namespace npu {

struct SafetensorsEntry {
  std::string name;
  std::string_view dtype;  // as the format spells it: "F32", "BF16", …
  Shape shape;
  size_t begin = 0, end = 0;  // bytes, from the end of the header
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry>
      entries;  // in file order; they cover the data without gap or overlap
  std::map<std::string, std::string> metadata;
  size_t data_offset = 0;
};

// Reads and checks the header of a whole file's bytes. Verdicts follow the official reader but are
// stricter where a file could mean two things: refused are duplicate names, entries in array form
// and shapes with a zero whose other dimensions overflow.
Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file,
                                            std::string_view where);

// Tensors are views of the mapped file; an unaligned one is copied. Only dtypes that this program
// has are readable; others are listed and refused when asked for.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const fs::path& path);  // throws UserError
  bool has(std::string_view name) const { return index_.contains(name); }
  const SafetensorsEntry& entry(std::string_view name) const;  // absent: UserError
  // Truth values come back as a copy that holds only 0 and 1.
  Tensor get(std::string_view name) const;
  std::vector<std::string> names() const;  // in file order
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const FileBytes& file() const { return *file_; }

 private:
  std::shared_ptr<const FileBytes> file_;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> index_;  // name → position in header_.entries
};

// The element type of this program for a safetensors dtype, if there is one, and back.
std::optional<DType> dtype_from_safetensors(std::string_view dtype);
std::string_view safetensors_dtype(DType dtype);

// Serialised bytes: tensors ordered by dtype width (widest first) then name, header padded to 8,
// metadata {"format":"pt"} added unless given. Non-finite values are the caller's concern.
std::string safetensors_bytes(const std::map<std::string, Tensor>& tensors,
                              std::map<std::string, std::string> metadata = {});
void write_safetensors(const fs::path& path, const std::map<std::string, Tensor>& tensors,
                       std::map<std::string, std::string> metadata = {});

}  // namespace npu
