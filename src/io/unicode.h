// UTF-8 and the few Unicode facts that tokenizers and templates need. Properties come from
// utf8proc; short tables bring them to the Unicode version that the `tokenizers` library uses at
// each place, so that ids agree for every code point.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace npu {

struct CodePoint {
  char32_t value = 0;
  int bytes = 1;
};

// The code point at byte `at`. A byte that starts no valid sequence reads as U+FFFD of one byte.
CodePoint code_point_at(std::string_view text, size_t at);
void append_utf8(std::string& out, char32_t code_point);
// Code points in `text`.
size_t utf8_length(std::string_view text);
// Replaces each ill-formed sequence (maximal subpart) by U+FFFD.
std::string utf8_lossy(std::string_view bytes);

// \p{L}, \p{N} and \s of the split patterns (Unicode 16).
bool is_letter(char32_t c);
bool is_number(char32_t c);
bool is_space(char32_t c);
// What the Digits pre-tokenizer isolates (Unicode 17).
bool is_digit_piece(char32_t c);
// \w: what must not touch an added token that is a single word.
bool is_word(char32_t c);
// str.isspace of Python: is_space and the four ASCII separators.
bool is_python_space(char32_t c);
// str.isprintable of Python.
bool is_python_printable(char32_t c);
// True when upper- or lower-casing may change `c` in a way that is not the ASCII rule.
bool has_case_beyond_ascii(char32_t c);

// `text` without Python's white space at its start and/or end.
std::string_view strip_space(std::string_view text, bool left = true, bool right = true);

// `text` for a message: control characters as \\xNN, and no more than `most` bytes of it.
std::string printable(std::string_view text, size_t most);

// NFC of `text`. When `text` changes, `origins` (if given) receives, for a growing list of offsets
// in the result, the offset in `text` they came from; when it does not change, `origins` stays
// empty.
struct Origin {
  size_t in_result = 0;
  size_t in_text = 0;
};
std::string nfc(std::string_view text, std::vector<Origin>* origins = nullptr);

}  // namespace npu
