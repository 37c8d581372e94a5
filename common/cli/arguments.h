// File: arguments.h
//
// Arguments of Tandem's programs, as CLI11 is to parse them.
#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// The arguments after the program's name, last one first: `CLI::App::parse` takes them so. "--name=" becomes
// "--name" and an empty value. CLI11 2.1 takes the next argument for the value of "--name=". Arguments after
// "--" stay as they are.
std::vector<std::string> Arguments(int argc, const char* const* argv);

}  // namespace tandem::cli
