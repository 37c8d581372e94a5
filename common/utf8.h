// File: utf8.h
//
// Whether a text is UTF-8: protobuf takes no other in its text fields, and logs and tables show no other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

// True for well-formed UTF-8: no overlong form, no surrogate, nothing above U+10FFFF.
inline bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i++]);
    if (first < 0x80) continue;
    const int behind = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4 || text.size() - i < static_cast<size_t>(behind)) return false;
    uint32_t point = first & (0x3fu >> behind);
    for (int k = 0; k < behind; ++k) {
      const auto next = static_cast<unsigned char>(text[i++]);
      if ((next & 0xc0) != 0x80) return false;
      point = point << 6 | (next & 0x3f);
    }
    const uint32_t least = behind == 3 ? 0x10000 : behind == 2 ? 0x800 : 0x80;
    if (point < least || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) return false;
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

}  // namespace tandem
