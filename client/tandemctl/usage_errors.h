// File: usage_errors.h
//
// Errors of a command line, in one sentence that names the nearest right word.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace tandem::ctl {

// The first word of `arguments` (last one first) that stands where a command of `app` must stand and names
// none: "unknown command 'stts'; did you mean 'stats'?". "" if there is no such word.
std::string UnknownCommand(const CLI::App& app, const std::vector<std::string>& arguments);

// CLI11's error after a parse of `app`. An unknown flag gets the nearest flag of that command.
std::string UsageError(const CLI::App& app, const CLI::ParseError& error);

}  // namespace tandem::ctl
