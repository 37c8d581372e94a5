// File: toml_parse.h
//
// The only way by which Tandem includes toml++ (headers only, heavy: include this in .cc files alone), and
// the only way by which it parses TOML.
//
// toml++ 3.3 states as assertions what malformed input breaks: "[@x]" ends a debug build by abort(), and in a
// release build the assertion becomes an assumption for the optimizer. So its assertions are kept in every
// build and throw; ParseToml turns that, and toml++'s own exceptions, into a Status.
#pragma once

#include <string_view>

#include "tandem/status.h"

#ifdef TOML_ASSERT
#error "include common/toml/toml_parse.h instead of toml++ itself"
#endif

namespace tandem::internal {
// Thrown by toml++'s assertions; only ParseToml sees it.
struct TomlAssertion {};
[[noreturn]] void ThrowTomlAssertion();
}  // namespace tandem::internal

#define TOML_EXCEPTIONS 1
#define TOML_ASSERT(expression) ((expression) ? void() : ::tandem::internal::ThrowTomlAssertion())
#ifdef NDEBUG
#define TANDEM_TOML_HAD_NDEBUG
#undef NDEBUG  // with it toml++ drops TOML_ASSERT
#endif
#if __has_include(<toml++/impl/unicode.h>)  // 3.3 and before
#include <toml++/impl/forward_declarations.h>
// Its tests of characters are not total: is_non_ascii_horizontal_whitespace(U+FEFE) "cannot be reached" but
// is.
#undef TOML_UNREACHABLE
#define TOML_UNREACHABLE return false
#include <toml++/impl/unicode.h>
#undef TOML_UNREACHABLE
#define TOML_UNREACHABLE __builtin_unreachable()
#endif
#include <toml++/toml.h>  // IWYU pragma: export
#ifdef TANDEM_TOML_HAD_NDEBUG
#undef TANDEM_TOML_HAD_NDEBUG
#define NDEBUG
#endif

namespace tandem {

// `text` as a table; `file` is its name in errors. INVALID_ARGUMENT "file:line: …" for anything that is not
// TOML, and for what CheckTomlText (toml_text.h) refuses.
Result<toml::table> ParseToml(std::string_view text, std::string_view file);

}  // namespace tandem
