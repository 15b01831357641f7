// Pre-tokenization: how text is cut before BPE. The split patterns that models publish are known by
// their exact text and matched by hand-written code, so that no regex engine sees untrusted
// patterns.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace npu {

enum class SplitRule {
  kDigits,  // each number alone, all else kept together
  kGpt2,    // the pattern inside ByteLevel(use_regex)
  kLlama3,  // up to three digits together
  kQwen2,   // the same with one digit
};

// The rule whose regular expression is `pattern`, if it is known.
std::optional<SplitRule> rule_of_pattern(std::string_view pattern);

// Appends the pieces of `text`, in order; together they are all of it.
void split_text(SplitRule rule, std::string_view text, std::vector<std::string_view>& pieces);

}  // namespace npu
