// File: launcher.h
//
// Runs the cases over rank processes, compares what ranks must have alike, and reports: a line a case (TAP),
// a summary.
#pragma once

#include "tests/conformance/options.h"

namespace tandem::conformance {

// The program's exit code: 0 if everything is right.
int RunLauncher(const Options& options);

}  // namespace tandem::conformance
