// See unicode.h.
#include "io/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "base/error.h"

namespace npu {
namespace {

struct Range {
  char32_t first, last;
};

// Letters and numbers assigned after Unicode 15, the version of utf8proc 2.8.
constexpr Range kNewLetters[] = {
    {0x1c89, 0x1c8a},   {0xa7cb, 0xa7cd},   {0xa7da, 0xa7dc},   {0x105c0, 0x105f3},
    {0x10d4a, 0x10d65}, {0x10d6f, 0x10d85}, {0x10ec2, 0x10ec4}, {0x11380, 0x11389},
    {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x113b5}, {0x113b7, 0x113b7},
    {0x113d1, 0x113d1}, {0x113d3, 0x113d3}, {0x11bc0, 0x11be0}, {0x13460, 0x143fa},
    {0x16100, 0x1611d}, {0x16d40, 0x16d6c}, {0x18cff, 0x18cff}, {0x1e5d0, 0x1e5ed},
    {0x1e5f0, 0x1e5f0}, {0x2ebf0, 0x2ee5d},
};
constexpr Range kNewNumbers[] = {
    {0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9}, {0x16130, 0x16139},
    {0x16d70, 0x16d79}, {0x1ccf0, 0x1ccf9}, {0x1e5f1, 0x1e5fa},
};
constexpr Range kNumbersOfUnicode17[] = {{0x11de0, 0x11de9}, {0x16ff4, 0x16ff6}};

// Marks that the NFC of `tokenizers` is too old to know: it neither reorders them nor composes
// across them. U+11A7 is here because utf8proc 2.8 takes it for a Hangul final and drops it.
constexpr Range kMarksUnknownToNfc[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x11a7, 0x11a7},
    {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},
    {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50},
    {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e},
    {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x1193d, 0x1193e}, {0x11943, 0x11943},
    {0x119e0, 0x119e0}, {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99},
    {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42},
    {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
    {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
};

template <size_t N>
bool in_ranges(const Range (&ranges)[N], char32_t c) {
  const Range* after = std::upper_bound(std::begin(ranges), std::end(ranges), c,
                                        [](char32_t v, const Range& r) { return v < r.first; });
  return after != std::begin(ranges) && c <= std::prev(after)->last;
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_mark(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC ||
         kind == UTF8PROC_CATEGORY_ME;
}

// Only marks and Hangul vowels and finals join what stands before them, so NFC may be cut before
// any other code point.
bool starts_nfc_segment(char32_t c) {
  return c < 0x300 || (!is_mark(c) && (c < 0x1160 || c > 0x11ff));
}

std::string nfc_segment(std::string_view text) {
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (size < 0) return std::string(text);  // ill-formed UTF-8: left alone
  std::string result(reinterpret_cast<const char*>(composed), static_cast<size_t>(size));
  std::free(composed);
  return result;
}

}  // namespace

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return {lead, 1};
  utf8proc_int32_t value = 0;
  const size_t rest = std::min<size_t>(text.size() - at, 4);
  const utf8proc_ssize_t bytes =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                       static_cast<utf8proc_ssize_t>(rest), &value);
  if (bytes <= 0) return {0xfffd, 1};
  return {static_cast<char32_t>(value), static_cast<int>(bytes)};
}

void append_utf8(std::string& out, char32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size =
      utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

size_t utf8_length(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; }));
}

std::string utf8_lossy(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (size_t at = 0; at < bytes.size();) {
    const CodePoint c = code_point_at(bytes, at);
    if (c.bytes > 1 || static_cast<unsigned char>(bytes[at]) < 0x80) {
      out.append(bytes.substr(at, static_cast<size_t>(c.bytes)));
      at += static_cast<size_t>(c.bytes);
      continue;
    }
    // The maximal subpart: a lead byte with those continuation bytes that could still be right.
    const auto lead = static_cast<unsigned char>(bytes[at]);
    const int wanted = lead >= 0xf0 && lead <= 0xf4   ? 3
                       : lead >= 0xe0 && lead <= 0xef ? 2
                       : lead >= 0xc2 && lead <= 0xdf ? 1
                                                      : 0;
    unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    ++at;
    for (int i = 0; i < wanted && at < bytes.size(); ++i, ++at) {
      const auto next = static_cast<unsigned char>(bytes[at]);
      if (next < low || next > high) break;
      low = 0x80;
      high = 0xbf;
    }
    append_utf8(out, 0xfffd);
  }
  return out;
}

bool is_letter(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  const utf8proc_category_t kind = category(c);
  return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO) ||
         in_ranges(kNewLetters, c);
}

bool is_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const utf8proc_category_t kind = category(c);
  return (kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO) ||
         in_ranges(kNewNumbers, c);
}

bool is_digit_piece(char32_t c) { return is_number(c) || in_ranges(kNumbersOfUnicode17, c); }

bool is_space(char32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_word(char32_t c) {
  if (is_letter(c) || c == 0x200c || c == 0x200d) return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:  // circled and squared letters are Alphabetic though they are symbols
      return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
             (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
  }
}

bool is_python_space(char32_t c) { return is_space(c) || (c >= 0x1c && c <= 0x1f); }

bool is_python_printable(char32_t c) {
  if (c < 0x7f) return c >= 0x20;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool has_case_beyond_ascii(char32_t c) {
  if (c < 0x80) return false;
  const auto point = static_cast<utf8proc_int32_t>(c);
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL ||
         kind == UTF8PROC_CATEGORY_LT || utf8proc_toupper(point) != point ||
         utf8proc_tolower(point) != point;
}

std::string_view strip_space(std::string_view text, bool left, bool right) {
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    const CodePoint c = code_point_at(text, begin);
    if (!is_python_space(c.value)) break;
    begin += static_cast<size_t>(c.bytes);
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(text[last]) >> 6) == 2) --last;
    if (!is_python_space(code_point_at(text, last).value)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

std::string printable(std::string_view text, size_t most) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (at + static_cast<size_t>(c.bytes) > most) return result + "…";
    if (c.value < 0x20 || c.value == 0x7f) {
      constexpr std::string_view kHex = "0123456789abcdef";
      result += {'\\', 'x', kHex[c.value >> 4], kHex[c.value & 15]};
    } else {
      append_utf8(result, c.value);
    }
    at += static_cast<size_t>(c.bytes);
  }
  return result;
}

std::string nfc(std::string_view text, std::vector<Origin>* origins) {
  if (std::all_of(text.begin(), text.end(),
                  [](char c) { return static_cast<signed char>(c) >= 0; }))
    return std::string(text);  // ASCII is its own NFC
  std::string result;
  std::vector<Origin> map;
  size_t begin = 0;
  const auto close_segment = [&](size_t end, bool known) {
    if (end == begin) return;
    map.push_back({result.size(), begin});
    const std::string_view segment = text.substr(begin, end - begin);
    result += known ? nfc_segment(segment) : std::string(segment);
    begin = end;
  };
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    const bool unknown = in_ranges(kMarksUnknownToNfc, c.value);
    if (unknown || starts_nfc_segment(c.value)) close_segment(at, true);
    at += static_cast<size_t>(c.bytes);
    if (unknown) close_segment(at, false);
  }
  close_segment(text.size(), true);
  if (origins != nullptr && result != text) *origins = std::move(map);
  return result;
}

}  // namespace npu
