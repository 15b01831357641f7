// Added tokens: strings that are cut out of a text before anything else and have an id of their own
// ("<|im_end|>").
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace npu {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // looked for after normalization
  bool special = false;      // left out by decode(skip_special)
};

// Finds added tokens in a text: at the leftmost place where one matches, the longest.
class AddedTokenFinder {
 public:
  AddedTokenFinder() { starts_.fill(false); }
  // `content` is what is looked for (the token's own content, or its normal form). The token must
  // outlive the finder.
  void add(std::string_view content, const AddedToken* token);

  // Calls visit(begin, end, token) for each stretch of `text` in order; token is null for what lies
  // between added tokens. Stretches are never empty.
  using Visit = std::function<void(size_t begin, size_t end, const AddedToken* token)>;
  void cut(std::string_view text, const Visit& visit) const;

 private:
  struct Match {
    size_t end = 0;
    const AddedToken* token = nullptr;
  };
  Match longest_at(std::string_view text, size_t at) const;

  // A trie: (node, byte) → node, and the token that ends at a node.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<const AddedToken*> ends_ = {nullptr};
  std::array<bool, 256> starts_;
};

}  // namespace npu
