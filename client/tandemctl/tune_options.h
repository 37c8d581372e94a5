// File: tune_options.h
//
// The options of `tandemctl tune` that describe a case: on the command line, and in a file with one line a
// case.
#pragma once

#include <string>
#include <vector>

#include "client/tandemctl/tune_setup.h"
#include "tandem/status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tandem::ctl {

// The cases of one line: one for each shape.
struct TuneLine {
  TuneCase what;  // its shape is not looked at
  std::vector<std::string> shapes;
  std::vector<TuneCase> Cases() const;
};

// --op, --shape, --dtype, --scales, --dim, --symmetric, --exact and --candidates, into `line`, which must
// outlive `app`.
void AddTuneLine(CLI::App* app, TuneLine* line);

// The cases of a file: each line has the options of AddTuneLine; empty lines and what follows a # are left
// out. INVALID_ARGUMENT "file:7: …" for a line that is none, and for a file without a case.
Result<std::vector<TuneCase>> ParseTuneCases(const std::string& text, const std::string& file);

}  // namespace tandem::ctl
