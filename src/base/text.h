// Small pieces of text that messages, keys and files are made of.
#pragma once

#include <string>
#include <string_view>

namespace npu {

// The words of a range with `separator` between them.
template <class Words>
std::string joined(const Words& words, std::string_view separator = ", ") {
  std::string text;
  bool first = true;
  for (const auto& word : words) {
    if (!first) text += separator;
    text += word;
    first = false;
  }
  return text;
}

// Names as options spell a set of them: "fwd,rms", or "none".
template <class Names>
std::string names_or_none(const Names& names) {
  const std::string text = joined(names, ",");
  return text.empty() ? "none" : text;
}

}  // namespace npu
