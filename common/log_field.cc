#include "common/log_field.h"

#include <algorithm>

#include "common/utf8.h"

namespace tandem::log {
namespace {

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

}  // namespace

bool IsBareValue(std::string_view text) {
  // A word of a sentence ends in punctuation: "(pid=7)".
  constexpr std::string_view kEnds = ").,;:]}";
  return !text.empty() && kEnds.find(text.back()) == std::string_view::npos &&
         std::none_of(text.begin(), text.end(), [](char c) {
           return IsControl(c) || c == ' ' || c == '"' || c == '\'' || c == '=' || c == '\\';
         });
}

std::string FieldValue(std::string_view text) {
  return IsBareValue(text) ? std::string(text) : QuotedFieldValue(text);
}

std::string QuotedFieldValue(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

std::string OneLine(std::string_view text) { return WithoutControlCharacters(text); }

}  // namespace tandem::log
