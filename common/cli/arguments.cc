#include "common/cli/arguments.h"

#include <algorithm>

namespace tandem::cli {

std::vector<std::string> Arguments(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  bool options = true;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    options = options && argument != "--";
    const bool empty_value =
        options && argument.starts_with("--") && argument.find('=') == argument.size() - 1;
    if (empty_value) argument.pop_back();
    arguments.push_back(std::move(argument));
    if (empty_value) arguments.emplace_back();
  }
  std::reverse(arguments.begin(), arguments.end());
  return arguments;
}

}  // namespace tandem::cli
