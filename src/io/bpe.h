// The merge loop of byte-level BPE, and the alphabet in which tokenizer.json spells bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace npu {

// GPT-2's alphabet: each byte is spelled as one printable code point.
char32_t byte_to_letter(unsigned char byte);
// The bytes that `token` spells, or `token` itself when a code point is not of the alphabet (as
// added tokens may have).
std::string token_bytes(std::string_view token);

// A token and the offset of its first byte in the text that was encoded.
struct TokenAt {
  int32_t id = 0;
  size_t begin = 0;
};

// Merges in rank order over ids. Time is O(n log n) in the length of a word, so that a long run
// without spaces is no trap.
class BpeMerger {
 public:
  BpeMerger() { byte_ids_.fill(-1); }

  void set_byte(unsigned char byte, int32_t id) { byte_ids_[byte] = id; }
  int32_t byte_id(unsigned char byte) const { return byte_ids_[byte]; }
  // The pair (left, right) becomes `merged`; a pair given twice keeps its last rank.
  void add_merge(int32_t left, int32_t right, int32_t rank, int32_t merged);

  // The token of bytes that have none; without it they are dropped, as `tokenizers` does. `fuse`
  // makes one token of a run.
  void set_unknown(int32_t id, bool fuse) { unknown_ = id, fuse_unknown_ = fuse; }

  // Appends the tokens of `word`; `offset` is where the word begins.
  void encode(std::string_view word, size_t offset, std::vector<TokenAt>& out) const;

 private:
  struct Merge {
    int32_t rank, id;
  };
  struct Symbol {
    int32_t id;
    int32_t previous, next;  // -1 at the ends
    size_t begin;
  };
  const Merge* find(int32_t left, int32_t right) const;
  std::vector<Symbol> symbols_of(std::string_view word, size_t offset) const;
  void merge_by_scan(std::vector<Symbol>& symbols) const;
  void merge_by_heap(std::vector<Symbol>& symbols) const;

  std::array<int32_t, 256> byte_ids_;
  int32_t unknown_ = -1;
  bool fuse_unknown_ = false;
  std::unordered_map<uint64_t, Merge> merges_;
};

}  // namespace npu
