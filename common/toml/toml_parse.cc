#include "common/toml/toml_parse.h"

#include <string>
#include <vector>

#include "common/toml/toml_text.h"

namespace tandem {

namespace internal {
void ThrowTomlAssertion() { throw TomlAssertion(); }
}  // namespace internal

namespace {

bool FailsAssertion(std::string_view text) {
  try {
    (void)toml::parse(text);
  } catch (const toml::parse_error&) {
    return false;
  } catch (const internal::TomlAssertion&) {
    return true;
  }
  return false;
}

// A failed assertion has no position. The parser reads from left to right, so the shortest run of lines with
// which it fails ends with the line at fault.
int LineOfAssertion(std::string_view text) {
  std::vector<size_t> ends;  // of each line
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') ends.push_back(i + 1);
  }
  ends.push_back(text.size());
  size_t low = 0;
  size_t high = ends.size() - 1;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (FailsAssertion(text.substr(0, ends[middle]))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return static_cast<int>(low) + 1;
}

}  // namespace

Result<toml::table> ParseToml(std::string_view text, std::string_view file) {
  TANDEM_RETURN_IF_ERROR(CheckTomlText(text, file));
  try {
    return toml::parse(text, file);
  } catch (const toml::parse_error& error) {
    return InvalidArgument(std::string(file) + ":" + std::to_string(error.source().begin.line) + ": " +
                           std::string(error.description()));
  } catch (const internal::TomlAssertion&) {
    return InvalidArgument(std::string(file) + ":" + std::to_string(LineOfAssertion(text)) +
                           ": no key or value can begin with this character");
  }
}

}  // namespace tandem
