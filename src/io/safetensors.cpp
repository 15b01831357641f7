// Reading safetensors: the header as events into entries, the rules on offsets, views of the file.
#include "io/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "io/json_events.h"
#include "io/quote.h"

namespace npu {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

constexpr size_t kMaxHeaderBytes = 100'000'000;  // the official reader's limit
constexpr int kMaxDepth = 128;                   // likewise

struct DTypeRow {
  std::string_view name;
  unsigned bits;
};
constexpr std::array<DTypeRow, 22> kDTypes = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

const DTypeRow* find_dtype(std::string_view name) {
  const auto row = std::ranges::find(kDTypes, name, &DTypeRow::name);
  return row == kDTypes.end() ? nullptr : &*row;
}

// Turns header events into entries; the only state is where in the header the parser is.
class HeaderHandler : public JsonHandler {
 public:
  SafetensorsHeader take() { return std::move(header_); }

  bool null() {
    return place_ == Place::kTop && in_metadata_ && skip_ == 0 ? true : scalar("null");
  }
  bool boolean(bool value) { return scalar(value ? "true" : "false"); }
  bool number_integer(Json::number_integer_t value) { return scalar(std::to_string(value)); }
  bool number_float(Json::number_float_t, const std::string& text) { return scalar(text); }
  bool number_unsigned(Json::number_unsigned_t value);
  bool string(std::string& text);
  bool key(std::string& name);
  bool start_object(size_t);
  bool end_object();
  bool start_array(size_t);
  bool end_array();

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };
  enum Field : unsigned { kDType = 1, kShape = 2, kOffsets = 4, kUnknown = 8 };

  bool bad_tensor(std::string what, std::string got = "") {
    return refuse("tensor " + in_quotes(entry_.name) + ": " + std::move(what), std::move(got));
  }
  bool scalar(std::string got);  // a value that is right only where anything is
  bool open_nested();
  bool finish_tensor();

  Place place_ = Place::kStart;
  int depth_ = 0;
  int skip_ = 0;  // levels inside an unknown field
  bool in_metadata_ = false, seen_metadata_ = false;
  unsigned fields_ = 0;
  Field field_ = kUnknown;
  std::string metadata_key_;
  SafetensorsEntry entry_;
  std::vector<uint64_t> offsets_;
  SafetensorsHeader header_;
};

bool HeaderHandler::scalar(std::string got) {
  if (skip_ > 0) return true;
  switch (place_) {
    case Place::kMetadata:
      return refuse("a __metadata__ value must be a string", std::move(got));
    case Place::kTensor:
      if (field_ == kUnknown) return true;
      return bad_tensor(field_ == kDType ? "dtype must be a string" : "must hold a list of sizes",
                        std::move(got));
    case Place::kShape:
    case Place::kOffsets:
      return bad_tensor("sizes must be whole numbers from 0 to 2^64-1", std::move(got));
    case Place::kTop:
      return refuse("each header entry must be an object", std::move(got));
    default:
      return refuse("the header must be a JSON object", std::move(got));
  }
}

bool HeaderHandler::number_unsigned(Json::number_unsigned_t value) {
  if (skip_ == 0 && place_ == Place::kShape) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return bad_tensor("the shape overflows", std::to_string(value));
    entry_.shape.push_back(static_cast<int64_t>(value));
    return true;
  }
  if (skip_ == 0 && place_ == Place::kOffsets) {
    offsets_.push_back(value);
    return true;
  }
  return scalar(std::to_string(value));
}

bool HeaderHandler::string(std::string& text) {
  if (skip_ == 0 && place_ == Place::kMetadata) {
    header_.metadata.insert_or_assign(metadata_key_, std::move(text));
    return true;
  }
  if (skip_ == 0 && place_ == Place::kTensor && field_ == kDType) {
    const DTypeRow* row = find_dtype(text);
    if (row == nullptr) return bad_tensor("unknown dtype", in_quotes(text));
    entry_.dtype = row->name;
    return true;
  }
  return scalar(in_quotes(text));
}

bool HeaderHandler::key(std::string& name) {
  if (skip_ > 0) return true;
  if (place_ == Place::kMetadata) {
    metadata_key_ = std::move(name);
    return true;
  }
  if (place_ == Place::kTop) {
    in_metadata_ = name == "__metadata__";
    if (in_metadata_ && std::exchange(seen_metadata_, true))
      return refuse("duplicate __metadata__");
    entry_ = {std::move(name), {}, {}, 0, 0};
    offsets_.clear();
    fields_ = 0;
    return true;
  }
  field_ = name == "dtype"          ? kDType
           : name == "shape"        ? kShape
           : name == "data_offsets" ? kOffsets
                                    : kUnknown;
  if (field_ != kUnknown && (fields_ & field_) != 0) return bad_tensor("duplicate field", name);
  fields_ |= field_;
  return true;
}

bool HeaderHandler::open_nested() {
  if (++depth_ > kMaxDepth)
    return refuse("the header is nested deeper than " + std::to_string(kMaxDepth) + " levels");
  return true;
}

bool HeaderHandler::start_object(size_t) {
  if (!open_nested()) return false;
  if (skip_ > 0 || (place_ == Place::kTensor && field_ == kUnknown)) {
    ++skip_;
    return true;
  }
  if (place_ != Place::kStart && place_ != Place::kTop) return scalar("an object");
  if (place_ == Place::kStart)
    place_ = Place::kTop;
  else
    place_ = in_metadata_ ? Place::kMetadata : Place::kTensor;
  return true;
}

bool HeaderHandler::end_object() {
  --depth_;
  if (skip_ > 0) {
    --skip_;
    return true;
  }
  if (place_ == Place::kTensor && !finish_tensor()) return false;
  place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
  return true;
}

bool HeaderHandler::start_array(size_t) {
  if (!open_nested()) return false;
  if (skip_ > 0 || (place_ == Place::kTensor && field_ == kUnknown)) {
    ++skip_;
    return true;
  }
  if (place_ != Place::kTensor || field_ == kDType) return scalar("an array");
  place_ = field_ == kShape ? Place::kShape : Place::kOffsets;
  return true;
}

bool HeaderHandler::end_array() {
  --depth_;
  if (skip_ > 0)
    --skip_;
  else
    place_ = Place::kTensor;
  return true;
}

bool HeaderHandler::finish_tensor() {
  if ((fields_ & kDType) == 0) return bad_tensor("missing field dtype");
  if ((fields_ & kShape) == 0) return bad_tensor("missing field shape");
  if ((fields_ & kOffsets) == 0) return bad_tensor("missing field data_offsets");
  if (offsets_.size() != 2)
    return bad_tensor("data_offsets must be [begin, end]",
                      std::to_string(offsets_.size()) + " numbers");
  entry_.begin = offsets_[0];
  entry_.end = offsets_[1];
  header_.entries.push_back(std::move(entry_));
  return true;
}

// Bytes of a shape; an error text where the size overflows or ends inside a byte.
Result<uint64_t> shape_bytes(const SafetensorsEntry& entry) {
  const Error overflow{ErrorKind::kBadInput, "", "the size of shape × dtype overflows", "", ""};
  uint64_t nonzero = 1;
  bool empty = false;
  for (const int64_t dim : entry.shape) {
    if (dim == 0)
      empty = true;
    else if (__builtin_mul_overflow(nonzero, static_cast<uint64_t>(dim), &nonzero))
      return overflow;
  }
  uint64_t bits = 0;
  if (__builtin_mul_overflow(nonzero, uint64_t{find_dtype(entry.dtype)->bits}, &bits))
    return overflow;
  if (empty) return uint64_t{0};
  if (bits % 8 != 0)
    return Error{ErrorKind::kBadInput, "", "the data does not end on a whole byte", "", ""};
  return bits / 8;
}

std::optional<Error> check_entries(const SafetensorsHeader& header, uint64_t data_bytes,
                                   std::string_view where) {
  const auto bad = [&](const SafetensorsEntry& entry, const std::string& what, std::string got) {
    return Error{ErrorKind::kBadInput, std::string(where),
                 "tensor " + in_quotes(entry.name) + ": " + what, std::move(got), ""};
  };
  uint64_t reached = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    const std::string range =
        "[" + std::to_string(entry.begin) + "," + std::to_string(entry.end) + "]";
    if (entry.begin != reached || entry.end < entry.begin)
      return bad(entry, "data_offsets must continue at " + std::to_string(reached), range);
    const Result<uint64_t> bytes = shape_bytes(entry);
    if (!bytes.ok())
      return bad(entry, bytes.error().what,
                 std::string(entry.dtype) + " " + shape_text(entry.shape));
    if (entry.end - entry.begin != bytes.value())
      return bad(entry,
                 "data_offsets must span the " + std::to_string(bytes.value()) + " bytes of " +
                     std::string(entry.dtype) + " " + shape_text(entry.shape),
                 range);
    reached = entry.end;
  }
  if (reached != data_bytes)
    return Error{ErrorKind::kBadInput, std::string(where),
                 "the tensors must cover the file exactly (" + std::to_string(reached) + " bytes)",
                 std::to_string(data_bytes) + " bytes of data",
                 "the file is truncated or not complete: copy it again"};
  return std::nullopt;
}

// The first name that occurs twice, if any.
const std::string* duplicate_name(const std::vector<SafetensorsEntry>& entries) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto name = [&](size_t i) -> const std::string& { return entries[i].name; };
  std::ranges::sort(order, {}, name);
  const auto twin = std::ranges::adjacent_find(order, {}, name);
  return twin == order.end() ? nullptr : &entries[*twin].name;
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors(std::span<const std::byte> file,
                                            std::string_view where) {
  const auto bad = [&](std::string what, std::string got) {
    return Error{ErrorKind::kBadInput, std::string(where), std::move(what), std::move(got), ""};
  };
  const std::string size_text = std::to_string(file.size()) + " bytes";
  uint64_t length = 0;
  if (file.size() < sizeof(length)) return bad("too small for a safetensors file", size_text);
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > kMaxHeaderBytes)
    return bad("the header is larger than 100,000,000 bytes", std::to_string(length));
  if (length > file.size() - sizeof(length))
    return bad("the header of " + std::to_string(length) + " bytes does not fit in the file",
               size_text);

  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof(length), length);
  HeaderHandler handler;
  if (auto error = feed_json(text, where, kMaxHeaderBytes, handler)) {
    error->where = std::string(where);  // a line number means little in a binary file
    error->what = "safetensors header: " + error->what;
    return *std::move(error);
  }
  SafetensorsHeader header = handler.take();
  header.data_offset = sizeof(length) + length;
  if (const std::string* name = duplicate_name(header.entries))
    return bad("two tensors have the same name", in_quotes(*name));
  std::ranges::stable_sort(header.entries, {}, [](const SafetensorsEntry& entry) {
    return std::pair(entry.begin, entry.end);
  });
  if (auto error = check_entries(header, file.size() - header.data_offset, where))
    return *std::move(error);
  return header;
}

std::optional<DType> dtype_from_safetensors(std::string_view dtype) {
  for (const DType candidate :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kI64, DType::kI32, DType::kU8, DType::kPred})
    if (safetensors_dtype(candidate) == dtype) return candidate;
  return std::nullopt;
}

std::string_view safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kU8:
      return "U8";
    case DType::kPred:
      return "BOOL";
  }
  NPU_CHECK(false, "unknown dtype");
}

SafetensorsFile SafetensorsFile::open(const fs::path& path) {
  SafetensorsFile result;
  result.file_ = FileBytes::open(path);
  result.header_ = parse_safetensors(result.file_->bytes(), path.string()).take();
  for (size_t i = 0; i < result.header_.entries.size(); ++i)
    result.index_.emplace(result.header_.entries[i].name, i);
  return result;
}

const SafetensorsEntry& SafetensorsFile::entry(std::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end())
    fail_input(file_->path().string(), "no tensor of this name", in_quotes(name));
  return header_.entries[found->second];
}

Tensor SafetensorsFile::get(std::string_view name) const {
  const SafetensorsEntry& found = entry(name);
  const std::optional<DType> dtype = dtype_from_safetensors(found.dtype);
  if (!dtype)
    fail_input(file_->path().string() + ": tensor " + in_quotes(name),
               "this dtype is not implemented", std::string(found.dtype),
               "convert the weights to F32, BF16 or F16");
  const std::byte* data = file_->bytes().data() + header_.data_offset + found.begin;
  const bool aligned = reinterpret_cast<uintptr_t>(data) % dtype_bytes(*dtype) == 0;
  if (aligned && *dtype != DType::kPred) return Tensor(*dtype, found.shape, file_, data);

  Tensor copy(*dtype, found.shape);
  if (copy.bytes() > 0) std::memcpy(copy.mutable_data(), data, copy.bytes());
  if (*dtype == DType::kPred)
    for (uint8_t& truth : copy.mutable_values<uint8_t>()) truth = truth != 0;
  return copy;
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> result;
  result.reserve(header_.entries.size());
  for (const SafetensorsEntry& found : header_.entries) result.push_back(found.name);
  return result;
}

}  // namespace npu
