// Reading GGUF's metadata and tensor table. Every count and length comes from the file, so each is
// checked against the bytes that are left before anything is allocated for it.
#include "io/gguf.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <set>

#include "io/json.h"
#include "io/quote.h"

namespace npu {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read as little endian");

constexpr size_t kMaxKeyBytes = 65'535;     // the format's limit
constexpr size_t kMaxTensorNameBytes = 64;  // likewise
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;

enum class ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};

// Bytes that an element of the type takes at least.
size_t least_bytes(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool:
      return 1;
    case ValueType::kU16:
    case ValueType::kI16:
      return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32:
      return 4;
    default:
      return 8;
  }
}

// A position in the file that never leaves it.
class Cursor {
 public:
  Cursor(std::span<const std::byte> file, std::string where)
      : file_(file), where_(std::move(where)) {}

  template <class T>
  T read() {
    need(sizeof(T));
    T value;
    std::memcpy(&value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string read_string(std::string_view role) {
    const auto length = read<uint64_t>();
    need(length);
    std::string text(reinterpret_cast<const char*>(file_.data()) + at_, length);
    if (!valid_utf8(text)) refuse(std::string(role) + " must be UTF-8");
    at_ += length;
    return text;
  }
  bool read_bool() {
    const auto value = read<uint8_t>();
    if (value > 1) refuse("a truth value must be 0 or 1", std::to_string(value));
    return value == 1;
  }
  size_t at() const { return at_; }
  size_t left() const { return file_.size() - at_; }
  void need(uint64_t bytes) const {
    if (bytes > left())
      refuse("the file ends too early",
             std::to_string(left()) + " of " + std::to_string(bytes) + " bytes left");
  }
  [[noreturn]] void refuse(std::string what, std::string got = "", std::string hint = "") const {
    fail_input(where_ + ": byte " + std::to_string(at_), std::move(what), std::move(got),
               std::move(hint));
  }

 private:
  std::span<const std::byte> file_;
  std::string where_;
  size_t at_ = 0;
};

ValueType read_value_type(Cursor& cursor) {
  const auto type = cursor.read<uint32_t>();
  if (type > static_cast<uint32_t>(ValueType::kF64))
    cursor.refuse("unknown metadata value type", std::to_string(type));
  return static_cast<ValueType>(type);
}

GgufValue read_scalar(Cursor& cursor, ValueType type) {
  switch (type) {
    case ValueType::kU8:
      return uint64_t{cursor.read<uint8_t>()};
    case ValueType::kI8:
      return int64_t{cursor.read<int8_t>()};
    case ValueType::kU16:
      return uint64_t{cursor.read<uint16_t>()};
    case ValueType::kI16:
      return int64_t{cursor.read<int16_t>()};
    case ValueType::kU32:
      return uint64_t{cursor.read<uint32_t>()};
    case ValueType::kI32:
      return int64_t{cursor.read<int32_t>()};
    case ValueType::kU64:
      return cursor.read<uint64_t>();
    case ValueType::kI64:
      return cursor.read<int64_t>();
    case ValueType::kF32:
      return cursor.read<float>();
    case ValueType::kF64:
      return cursor.read<double>();
    case ValueType::kBool:
      return cursor.read_bool();
    case ValueType::kString:
      return cursor.read_string("a string");
    case ValueType::kArray:
      break;
  }
  cursor.refuse("arrays in arrays are not implemented");
}

int64_t as_whole(const Cursor& cursor, const GgufValue& value) {
  if (const auto* truth = std::get_if<bool>(&value)) return *truth ? 1 : 0;
  if (const auto* number = std::get_if<int64_t>(&value)) return *number;
  const uint64_t number = std::get<uint64_t>(value);
  if (number > static_cast<uint64_t>(INT64_MAX))
    cursor.refuse("a number in an array is above 2^63-1", std::to_string(number));
  return static_cast<int64_t>(number);
}

GgufValue read_array(Cursor& cursor) {
  const ValueType type = read_value_type(cursor);
  const auto count = cursor.read<uint64_t>();
  if (type == ValueType::kArray) cursor.refuse("arrays in arrays are not implemented");
  if (count > cursor.left() / least_bytes(type))
    cursor.refuse("an array is longer than the file", std::to_string(count) + " elements");
  if (type == ValueType::kString) {
    std::vector<std::string> texts;
    texts.reserve(count);
    for (uint64_t i = 0; i < count; ++i) texts.push_back(cursor.read_string("a string"));
    return texts;
  }
  if (type == ValueType::kF32 || type == ValueType::kF64) {
    std::vector<double> numbers;
    numbers.reserve(count);
    for (uint64_t i = 0; i < count; ++i)
      numbers.push_back(type == ValueType::kF32 ? cursor.read<float>() : cursor.read<double>());
    return numbers;
  }
  std::vector<int64_t> numbers;
  numbers.reserve(count);
  for (uint64_t i = 0; i < count; ++i)
    numbers.push_back(as_whole(cursor, read_scalar(cursor, type)));
  return numbers;
}

void read_metadata(Cursor& cursor, uint64_t count, Gguf& result) {
  for (uint64_t i = 0; i < count; ++i) {
    std::string key = cursor.read_string("a metadata key");
    if (key.empty() || key.size() > kMaxKeyBytes)
      cursor.refuse("a metadata key must have 1 to 65535 bytes", std::to_string(key.size()));
    const ValueType type = read_value_type(cursor);
    GgufValue value = type == ValueType::kArray ? read_array(cursor) : read_scalar(cursor, type);
    if (!result.metadata.try_emplace(key, std::move(value)).second)
      cursor.refuse("duplicate metadata key", in_quotes(key));
  }
}

// One row of the tensor table; `begin` is still relative to the data section.
GgufTensor read_tensor_info(Cursor& cursor) {
  GgufTensor tensor;
  tensor.name = cursor.read_string("a tensor name");
  if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes)
    cursor.refuse("a tensor name must have 1 to 64 bytes", std::to_string(tensor.name.size()));
  const std::string label = "tensor " + in_quotes(tensor.name) + ": ";
  const auto dims = cursor.read<uint32_t>();
  if (dims < 1 || dims > kMaxDims)
    cursor.refuse(label + "must have 1 to 4 dimensions", std::to_string(dims));
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dims; ++i) {
    const auto dim = cursor.read<uint64_t>();
    if (dim == 0 || __builtin_mul_overflow(elements, dim, &elements) ||
        elements > static_cast<uint64_t>(INT64_MAX))
      cursor.refuse(label + "dimensions must be positive and their product below 2^63",
                    std::to_string(dim));
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
  }
  const auto type = cursor.read<uint32_t>();
  const GgmlTypeInfo* info = find_ggml_type(type);
  if (info == nullptr)
    cursor.refuse(label + "this element type is not implemented", "type " + std::to_string(type),
                  "implemented: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K");
  tensor.type = info->type;
  if (tensor.shape.back() % info->block_elements != 0)
    cursor.refuse(label + "rows must be whole blocks of " + std::to_string(info->block_elements),
                  shape_text(tensor.shape) + " " + std::string(info->name));
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements / static_cast<uint64_t>(info->block_elements),
                             static_cast<uint64_t>(info->block_bytes), &bytes))
    cursor.refuse(label + "the size overflows", shape_text(tensor.shape));
  tensor.bytes = bytes;
  tensor.begin = cursor.read<uint64_t>();
  return tensor;
}

uint64_t alignment_of(const Gguf& gguf) {
  const int64_t alignment = gguf.whole("general.alignment", kDefaultAlignment);
  const auto value = static_cast<uint64_t>(alignment);
  if (alignment < 1 || value > kMaxAlignment || !std::has_single_bit(value))
    fail_input(gguf.where + ": general.alignment", "must be a power of two up to 2^20",
               std::to_string(alignment));
  return value;
}

// Makes `begin` absolute and checks that tensors are aligned, inside the file and apart.
void place_tensors(Gguf& gguf, size_t table_end, size_t file_bytes) {
  const uint64_t alignment = alignment_of(gguf);
  const uint64_t data = (table_end + alignment - 1) / alignment * alignment;
  std::vector<const GgufTensor*> order;
  for (GgufTensor& tensor : gguf.tensors) {
    const std::string where = gguf.where + ": tensor " + in_quotes(tensor.name);
    if (tensor.begin % alignment != 0)
      fail_input(where, "must be aligned to " + std::to_string(alignment) + " bytes",
                 "offset " + std::to_string(tensor.begin));
    const uint64_t room = file_bytes > data ? file_bytes - data : 0;
    if (tensor.begin > room || tensor.bytes > room - tensor.begin)
      fail_input(where, "lies outside the file",
                 std::to_string(tensor.bytes) + " bytes at offset " + std::to_string(tensor.begin) +
                     " of " + std::to_string(room),
                 "the file is truncated: copy it again");
    tensor.begin += data;
    order.push_back(&tensor);
  }
  std::ranges::sort(order, {}, &GgufTensor::begin);
  for (size_t i = 1; i < order.size(); ++i)
    if (order[i]->begin < order[i - 1]->begin + order[i - 1]->bytes)
      fail_input(gguf.where + ": tensor " + in_quotes(order[i]->name), "overlaps another tensor",
                 in_quotes(order[i - 1]->name));
}

void check_magic(Cursor& cursor) {
  const auto magic = cursor.read<uint32_t>();
  if (magic != 0x46554747)
    cursor.refuse("not a GGUF file: it must start with \"GGUF\"", "", "is the download whole?");
}

uint32_t read_version(Cursor& cursor) {
  const auto version = cursor.read<uint32_t>();
  if (version == __builtin_bswap32(2) || version == __builtin_bswap32(3))
    cursor.refuse("big-endian GGUF is not implemented");
  if (version != 2 && version != 3)
    cursor.refuse("GGUF versions 2 and 3 are implemented", "version " + std::to_string(version));
  return version;
}

[[noreturn]] void wrong_type(const Gguf& gguf, std::string_view key, std::string_view expected) {
  fail_input(gguf.where + ": " + std::string(key),
             gguf.has(key) ? "must be " + std::string(expected) : "the metadata key is missing");
}

template <class T>
const T* get_if(const Gguf& gguf, std::string_view key) {
  const auto found = gguf.metadata.find(key);
  return found == gguf.metadata.end() ? nullptr : std::get_if<T>(&found->second);
}

}  // namespace

Gguf parse_gguf(std::span<const std::byte> file, std::string_view where) {
  Cursor cursor(file, std::string(where));
  Gguf result;
  result.where = std::string(where);
  check_magic(cursor);
  result.version = read_version(cursor);
  const auto tensor_count = cursor.read<uint64_t>();
  const auto metadata_count = cursor.read<uint64_t>();
  read_metadata(cursor, metadata_count, result);
  std::set<std::string, std::less<>> names;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    result.tensors.push_back(read_tensor_info(cursor));
    if (!names.insert(result.tensors.back().name).second)
      cursor.refuse("two tensors have the same name", in_quotes(result.tensors.back().name));
  }
  place_tensors(result, cursor.at(), file.size());
  return result;
}

const GgufTensor* Gguf::find_tensor(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &GgufTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

int64_t Gguf::whole(std::string_view key, std::optional<int64_t> fallback) const {
  if (fallback && !has(key)) return *fallback;
  if (const auto* value = get_if<int64_t>(*this, key)) return *value;
  const auto* value = get_if<uint64_t>(*this, key);
  if (value == nullptr || *value > static_cast<uint64_t>(INT64_MAX))
    wrong_type(*this, key, "a whole number");
  return static_cast<int64_t>(*value);
}

double Gguf::number(std::string_view key, std::optional<double> fallback) const {
  if (fallback && !has(key)) return *fallback;
  double result = NAN;
  if (const auto* wide = get_if<double>(*this, key)) {
    result = *wide;
  } else if (const auto* value = get_if<float>(*this, key)) {
    // The decimal that was meant: an f32 1e-5 becomes 1e-05, not 9.99999974737875e-06.
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof(digits), *value).ptr;
    std::from_chars(digits, end, result);
  }
  if (!std::isfinite(result)) wrong_type(*this, key, "a finite real number");
  return result;
}

bool Gguf::flag(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  const auto* value = get_if<bool>(*this, key);
  if (value == nullptr) wrong_type(*this, key, "a truth value");
  return *value;
}

std::string Gguf::text(std::string_view key, std::optional<std::string> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const auto* value = get_if<std::string>(*this, key);
  if (value == nullptr) wrong_type(*this, key, "a string");
  return *value;
}

const std::vector<std::string>& Gguf::texts(std::string_view key) const {
  const auto* value = get_if<std::vector<std::string>>(*this, key);
  if (value == nullptr) wrong_type(*this, key, "an array of strings");
  return *value;
}

const std::vector<int64_t>& Gguf::wholes(std::string_view key) const {
  const auto* value = get_if<std::vector<int64_t>>(*this, key);
  if (value == nullptr) wrong_type(*this, key, "an array of whole numbers");
  return *value;
}

}  // namespace npu
