// File: log_field.h
//
// Values in a line of the log, as log_line.h reads them: texts of others' making, which could pass for pairs.
#pragma once

#include <string>
#include <string_view>

namespace tandem::log {

// True if the text may stand behind "key=" as it is: no spaces, quotes, control characters, no punctuation
// at its end.
bool IsBareValue(std::string_view text);

// `text` as it is, if it is a bare value, else in quotes.
std::string FieldValue(std::string_view text);
// `text` in quotes, with backslashes before quotes and backslashes.
std::string QuotedFieldValue(std::string_view text);

// `text` without line feeds and other control characters (WithoutControlCharacters).
std::string OneLine(std::string_view text);

}  // namespace tandem::log
