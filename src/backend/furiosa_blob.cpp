// The content under the seal: texts, each as "LENGTH:BYTES", in the order of the fields; a list is
// its count and then its texts.
#include "backend/furiosa_blob.h"

#include <charconv>
#include <optional>

#include "backend/sealed_blob.h"

namespace npu {
namespace {

constexpr std::string_view kKind = "furiosa";
constexpr std::string_view kEdf = "edf", kRunnable = "runnable";
constexpr const char* kForm = "3";

void put(std::string& content, std::string_view text) {
  content += std::to_string(text.size()) + ":";
  content += text;
}

void put(std::string& content, const std::vector<std::string>& list) {
  put(content, std::to_string(list.size()));
  for (const std::string& text : list) put(content, text);
}

std::optional<size_t> whole_number(std::string_view digits) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

// Takes from the front of what is left; false when the bytes end early or are no such thing.
class Reader {
 public:
  explicit Reader(std::string_view content) : rest_(content) {}

  bool text(std::string& out) {
    const size_t colon = rest_.find(':');
    if (colon == std::string_view::npos) return false;
    const std::optional<size_t> length = whole_number(rest_.substr(0, colon));
    if (!length || *length > rest_.size() - colon - 1) return false;
    out = rest_.substr(colon + 1, *length);
    rest_.remove_prefix(colon + 1 + *length);
    return true;
  }

  bool list(std::vector<std::string>& out) {
    std::string digits;
    if (!text(digits)) return false;
    const std::optional<size_t> count = whole_number(digits);
    for (size_t i = 0; count && i < *count; ++i) {
      if (!text(out.emplace_back())) return false;
    }
    return count.has_value();
  }

  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

}  // namespace

Blob encode_furiosa_blob(const FuriosaBlob& blob, std::string_view compiler_version) {
  std::string content;
  put(content, blob.target);
  put(content, blob.container == FuriosaContainer::kRunnable ? kRunnable : kEdf);
  put(content, compiler_version);
  put(content, blob.inputs);
  put(content, blob.outputs);
  put(content, blob.cycles ? std::to_string(static_cast<uint64_t>(*blob.cycles)) : "");
  put(content, blob.edf);
  return seal_blob(kKind, kForm, content);
}

Result<FuriosaBlob> decode_furiosa_blob(const Blob& blob) {
  const Result<std::string_view> content = unseal_blob(kKind, kForm, blob);
  if (!content) return content.error();
  FuriosaBlob out;
  Reader reader(content.value());
  std::string container, cycles;
  const bool whole = reader.text(out.target) && reader.text(container) &&
                     (container == kEdf || container == kRunnable) && reader.text(out.compiler) &&
                     reader.list(out.inputs) && reader.list(out.outputs) && reader.text(cycles) &&
                     (cycles.empty() || whole_number(cycles)) && reader.text(out.edf) &&
                     reader.at_end();
  if (whole && !cycles.empty()) out.cycles = static_cast<double>(*whole_number(cycles));
  out.container = container == kRunnable ? FuriosaContainer::kRunnable : FuriosaContainer::kEdf;
  if (whole) return out;
  return Error{ErrorKind::kBadInput, "furiosa blob", "is damaged", "", "clear the compile cache"};
}

}  // namespace npu
