// File: utf8.h
//
// Whether a text is UTF-8: protobuf takes no other in its text fields, and logs and tables show no other.
// Also the characters of a text that are not to be shown.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

// Returns the code point at text[*at] and moves *at behind it. Returns -1, one byte on, where the bytes are
// not well-formed UTF-8: an overlong form, a surrogate, or above U+10FFFF. *at < text.size().
inline int32_t NextCodePoint(std::string_view text, size_t* at) {
  const auto first = static_cast<unsigned char>(text[(*at)++]);
  if (first < 0x80) return first;
  const int behind = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
  if (first < 0xc2 || first > 0xf4 || text.size() - *at < static_cast<size_t>(behind)) return -1;
  int32_t point = first & (0x3f >> behind);
  for (int k = 0; k < behind; ++k) {
    const auto next = static_cast<unsigned char>(text[*at + static_cast<size_t>(k)]);
    if ((next & 0xc0) != 0x80) return -1;
    point = point << 6 | (next & 0x3f);
  }
  const int32_t least = behind == 3 ? 0x10000 : behind == 2 ? 0x800 : 0x80;
  if (point < least || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) return -1;
  *at += static_cast<size_t>(behind);
  return point;
}

// True for well-formed UTF-8.
inline bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (NextCodePoint(text, &i) < 0) return false;
  }
  return true;
}

// The text with '?' for each byte that is not ASCII, where it is not UTF-8.
inline std::string AsUtf8(std::string text) {
  if (IsUtf8(text)) return text;
  for (char& c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  }
  return text;
}

// True for characters that act on a terminal or on the order of other characters instead of being seen. These
// are control characters of ASCII and of U+0080 to U+009F, line and paragraph separators, and marks of
// writing direction.
constexpr bool IsControlCharacter(int32_t point) {
  return (point >= 0 && point < 0x20) || (point >= 0x7f && point < 0xa0) || point == 0x61c ||
         point == 0x200e || point == 0x200f || (point >= 0x2028 && point <= 0x202e) ||
         (point >= 0x2066 && point <= 0x2069);
}

inline bool HasControlCharacters(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (IsControlCharacter(NextCodePoint(text, &i))) return true;
  }
  return false;
}

// The text with a space for each control character, and '?' for each byte that is not UTF-8.
inline std::string WithoutControlCharacters(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t from = i;
    const int32_t point = NextCodePoint(text, &i);
    if (point < 0) {
      shown += '?';
    } else if (IsControlCharacter(point)) {
      shown += ' ';
    } else {
      shown += text.substr(from, i - from);
    }
  }
  return shown;
}

}  // namespace tandem
