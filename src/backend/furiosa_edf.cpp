// A reader for as much CBOR (RFC 8949) as an EDF holds: integers, strings, arrays, maps and simple
// values, all of definite length.
#include "backend/furiosa_edf.h"

#include <algorithm>

namespace npu {
namespace {

constexpr size_t kHeadBytes = 8, kTailBytes = 16;
constexpr std::string_view kStart =
    "\xa1\x63"
    "Edf";  // a map of one, whose key is "Edf"
constexpr int kMostDepth = 64;
// Of one file: the signature is a few hundred, the schedule some ten thousand.
constexpr size_t kMostItems = size_t{1} << 22;

enum Major : uint8_t { kUnsigned, kNegative, kBytes, kText, kArray, kMap, kTag, kSimple };

struct Item {
  uint8_t major = kSimple;
  uint64_t number = 0;      // of integers and simple values
  std::string_view text;    // of strings
  std::vector<Item> items;  // of arrays; of maps, keys and values in turn

  const Item* find(std::string_view key) const {
    for (size_t i = 0; major == kMap && i + 1 < items.size(); i += 2) {
      if (items[i].major == kText && items[i].text == key) return &items[i + 1];
    }
    return nullptr;
  }
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  // False when the bytes end early or are of a form that an EDF has none of.
  bool read(Item& item, int depth = 0) {
    if (depth > kMostDepth || ++count_ > kMostItems || rest_.empty()) return false;
    const auto head = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    item.major = head >> 5;
    if (!read_number(head & 31, item.number)) return false;
    switch (item.major) {
      case kBytes:
      case kText:
        if (item.number > rest_.size()) return false;
        item.text = rest_.substr(0, item.number);
        rest_.remove_prefix(item.number);
        return true;
      case kArray:
      case kMap: {
        if (item.number > rest_.size()) return false;  // an item takes a byte at least
        const uint64_t items = item.major == kMap ? 2 * item.number : item.number;
        for (uint64_t i = 0; i < items; ++i) {
          if (!read(item.items.emplace_back(), depth + 1)) return false;
        }
        return true;
      }
      case kTag:
        return read(item, depth + 1);
      default:
        return true;
    }
  }

  bool at_end() const { return rest_.empty(); }

 private:
  bool read_number(int info, uint64_t& number) {
    if (info < 24) {
      number = static_cast<uint64_t>(info);
      return true;
    }
    if (info > 27) return false;  // an indefinite length, or nothing that is defined
    const size_t bytes = size_t{1} << (info - 24);
    if (bytes > rest_.size()) return false;
    number = 0;
    for (size_t i = 0; i < bytes; ++i) number = number << 8 | static_cast<uint8_t>(rest_[i]);
    rest_.remove_prefix(bytes);
    return true;
  }

  std::string_view rest_;
  size_t count_ = 0;
};

const Item* find_path(const Item* item, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (item != nullptr) item = item->find(key);
  }
  return item;
}

bool read_port(const Item& tensor, EdfPort& port) {
  const Item* type = tensor.find("element_type");
  const Item* axes = find_path(&tensor, {"original_tensor", "TaggedShape", "inner", "inner"});
  if (type == nullptr || type->major != kText || axes == nullptr || axes->major != kArray) {
    return false;
  }
  port.element_type = type->text;
  for (const Item& axis : axes->items) {
    const Item* size = axis.find("size");
    if (size == nullptr || size->major != kUnsigned || size->number > INT64_MAX) return false;
    port.dims.push_back(static_cast<int64_t>(size->number));
  }
  return true;
}

// An input is a pair of the tensor and a flag, an output the tensor itself.
bool read_ports(const Item* list, bool paired, std::vector<EdfPort>& ports) {
  if (list == nullptr || list->major != kArray) return false;
  for (const Item& entry : list->items) {
    if (paired && (entry.major != kArray || entry.items.empty())) return false;
    if (!read_port(paired ? entry.items[0] : entry, ports.emplace_back())) return false;
  }
  return true;
}

Error edf_error(std::string what, std::string got) {
  return {ErrorKind::kBadInput, "EDF", std::move(what), std::move(got), ""};
}

}  // namespace

std::optional<Error> check_edf_frame(std::string_view edf) {
  const std::string size = std::to_string(edf.size()) + " bytes";
  if (edf.size() < kHeadBytes + kStart.size() + kTailBytes) {
    return edf_error("is cut off", size);
  }
  uint64_t length = 0;
  for (size_t i = kHeadBytes; i-- > 0;) length = length << 8 | static_cast<uint8_t>(edf[i]);
  if (length != edf.size() - kHeadBytes - kTailBytes) {
    return edf_error("must be as long as it says", size + " for " + std::to_string(length));
  }
  if (edf.substr(kHeadBytes, kStart.size()) != kStart) {
    return edf_error("must hold the map Edf", "other bytes");
  }
  const std::string_view tail = edf.substr(edf.size() - kTailBytes);
  if (std::any_of(tail.begin(), tail.end(), [](char c) { return c != 0; })) {
    return edf_error("must end in zeros", "other bytes");
  }
  return std::nullopt;
}

Result<EdfPorts> read_edf_ports(std::string_view edf) {
  if (auto error = check_edf_frame(edf)) return std::move(*error);
  Item root;
  Reader reader(edf.substr(kHeadBytes, edf.size() - kHeadBytes - kTailBytes));
  if (!reader.read(root) || !reader.at_end()) return edf_error("must be CBOR", "damaged bytes");
  const Item* signature = find_path(&root, {"Edf", "signature"});
  EdfPorts ports;
  if (signature == nullptr || !read_ports(signature->find("inputs"), true, ports.inputs) ||
      !read_ports(signature->find("outputs"), false, ports.outputs)) {
    return edf_error("must hold a signature of shapes and types as in release 2026.4",
                     "another form");
  }
  return ports;
}

}  // namespace npu
