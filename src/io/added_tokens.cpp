// See added_tokens.h. The rules for flags are those of the `tokenizers` library.
#include "io/added_tokens.h"

#include <algorithm>

#include "io/unicode.h"

namespace npu {
namespace {

bool word_before(std::string_view text, size_t at) {
  if (at == 0) return false;
  size_t last = at - 1;
  while (last > 0 && (static_cast<unsigned char>(text[last]) >> 6) == 2) --last;
  return is_word(code_point_at(text, last).value);
}

bool word_after(std::string_view text, size_t at) {
  return at < text.size() && is_word(code_point_at(text, at).value);
}

size_t space_begin(std::string_view text, size_t at) {
  while (at > 0) {
    size_t last = at - 1;
    while (last > 0 && (static_cast<unsigned char>(text[last]) >> 6) == 2) --last;
    if (!is_space(code_point_at(text, last).value)) break;
    at = last;
  }
  return at;
}

size_t space_end(std::string_view text, size_t at) {
  while (at < text.size()) {
    const CodePoint c = code_point_at(text, at);
    if (!is_space(c.value)) break;
    at += static_cast<size_t>(c.bytes);
  }
  return at;
}

}  // namespace

void AddedTokenFinder::add(std::string_view content, const AddedToken* token) {
  uint32_t node = 0;
  for (const char c : content) {
    const auto byte = static_cast<unsigned char>(c);
    const auto [edge, is_new] =
        edges_.try_emplace((uint64_t{node} << 8) | byte, static_cast<uint32_t>(ends_.size()));
    if (is_new) ends_.push_back(nullptr);
    node = edge->second;
  }
  ends_[node] = token;
  starts_[static_cast<unsigned char>(content.front())] = true;
}

AddedTokenFinder::Match AddedTokenFinder::longest_at(std::string_view text, size_t at) const {
  Match match;
  uint32_t node = 0;
  while (at < text.size()) {
    const auto edge = edges_.find((uint64_t{node} << 8) | static_cast<unsigned char>(text[at]));
    if (edge == edges_.end()) break;
    node = edge->second;
    ++at;
    if (ends_[node] != nullptr) match = {at, ends_[node]};
  }
  return match;
}

void AddedTokenFinder::cut(std::string_view text, const Visit& visit) const {
  size_t done = 0;  // text up to here has been visited
  for (size_t at = 0; at < text.size();) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const Match match = longest_at(text, at);
    if (match.token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = match.end;
    at = match.end;
    const AddedToken& token = *match.token;
    if (token.single_word && (word_before(text, begin) || word_after(text, end))) continue;
    if (token.lstrip) begin = space_begin(text, begin);
    if (token.rstrip) end = space_end(text, end);
    begin = std::max(begin, done);
    if (begin > done) visit(done, begin, nullptr);
    visit(begin, end, &token);
    done = end;
    at = std::max(at, done);
  }
  if (done < text.size()) visit(done, text.size(), nullptr);
}

}  // namespace npu
