// File: toml_text.h
//
// The parts that every reader and writer of TOML in Tandem shares: reading the file, a check before parsing,
// and quoting.
#pragma once

#include <string>
#include <string_view>

#include "tandem/status.h"

namespace tandem {

// The file's contents. NOT_FOUND and the like with the path in the message; INVALID_ARGUMENT above 1 MiB.
Result<std::string> ReadTextFile(const std::string& path);

// ParseToml (toml_parse.h) calls this first. toml++ 3.3 runs into undefined behaviour when it asks whether
// some characters above ASCII are white space (is_non_ascii_horizontal_whitespace), which it asks of those
// outside strings and comments and after a backslash. TOML allows none of them there. INVALID_ARGUMENT
// "file:line: …" for these, for characters above ASCII in multi-line strings, where the same may happen, for
// control characters, which TOML allows nowhere, and for quotes where no string can begin. Quoted keys after
// a dot are refused with these.
Status CheckTomlText(std::string_view text, std::string_view file);

// `text` (UTF-8) as a TOML basic string with its quotes.
std::string QuoteToml(std::string_view text);

}  // namespace tandem
