// See bpe.h.
#include "io/bpe.h"

#include <algorithm>
#include <queue>

#include "io/unicode.h"

namespace npu {
namespace {

// Words up to this many symbols are merged by scanning, which beats a heap there.
constexpr size_t kScanLimit = 24;

// Printable Latin-1 stands for itself; the other 68 bytes follow from U+0100 on.
std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> letters{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    letters[byte] = itself ? byte : next++;
  }
  return letters;
}

// -1 for code points outside the alphabet.
int letter_to_byte(char32_t letter) {
  static const std::array<int, 0x144> bytes = [] {
    std::array<int, 0x144> table{};
    table.fill(-1);
    for (int byte = 0; byte < 256; ++byte)
      table[byte_to_letter(static_cast<unsigned char>(byte))] = byte;
    return table;
  }();
  return letter < bytes.size() ? bytes[letter] : -1;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

}  // namespace

char32_t byte_to_letter(unsigned char byte) {
  static const std::array<char32_t, 256> letters = make_alphabet();
  return letters[byte];
}

std::string token_bytes(std::string_view token) {
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = code_point_at(token, at);
    const int byte = letter_to_byte(c.value);
    if (byte < 0) return std::string(token);
    bytes += static_cast<char>(byte);
    at += static_cast<size_t>(c.bytes);
  }
  return bytes;
}

void BpeMerger::add_merge(int32_t left, int32_t right, int32_t rank, int32_t merged) {
  merges_[pair_key(left, right)] = {rank, merged};
}

const BpeMerger::Merge* BpeMerger::find(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<BpeMerger::Symbol> BpeMerger::symbols_of(std::string_view word, size_t offset) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  bool in_unknown = false;
  for (size_t i = 0; i < word.size(); ++i) {
    int32_t id = byte_ids_[static_cast<unsigned char>(word[i])];
    const bool unknown = id < 0;
    if (unknown && (unknown_ < 0 || (in_unknown && fuse_unknown_))) continue;
    in_unknown = unknown;
    if (unknown) id = unknown_;
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1, offset + i});
  }
  if (!symbols.empty()) symbols.back().next = -1;
  return symbols;
}

void BpeMerger::merge_by_scan(std::vector<Symbol>& symbols) const {
  while (symbols.size() > 1) {
    const Merge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Merge* merge = find(symbols[i].id, symbols[i + 1].id);
      if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) best = merge, at = i;
    }
    if (best == nullptr) return;
    symbols[at].id = best->id;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

void BpeMerger::merge_by_heap(std::vector<Symbol>& symbols) const {
  struct Candidate {
    int32_t rank, left, left_id, right_id, merged;
    bool operator<(
        const Candidate& other) const {  // the heap's top is the lowest rank, then leftmost
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::priority_queue<Candidate> heap;
  const auto consider = [&](int32_t left) {
    const int32_t right = left < 0 ? -1 : symbols[left].next;
    if (right < 0) return;
    const Merge* merge = find(symbols[left].id, symbols[right].id);
    if (merge != nullptr)
      heap.push({merge->rank, left, symbols[left].id, symbols[right].id, merge->id});
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) consider(static_cast<int32_t>(i));
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    Symbol& left = symbols[top.left];
    // The pair is stale when either side was merged since; a swallowed symbol has id -1.
    if (left.id != top.left_id || left.next < 0 || symbols[left.next].id != top.right_id) continue;
    Symbol& right = symbols[left.next];
    left.id = top.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = top.left;
    consider(left.previous);
    consider(top.left);
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.id < 0; });
}

void BpeMerger::encode(std::string_view word, size_t offset, std::vector<TokenAt>& out) const {
  std::vector<Symbol> symbols = symbols_of(word, offset);
  if (symbols.size() <= kScanLimit)
    merge_by_scan(symbols);
  else
    merge_by_heap(symbols);
  for (const Symbol& symbol : symbols) out.push_back({symbol.id, symbol.begin});
}

}  // namespace npu
