// File: launcher.h
//
// Starts the ranks, follows them, kills one if asked to, and holds what they report against the reference.
#pragma once

#include "examples/train_digits/options.h"

namespace tandem::digits {

// Runs the whole example; the process's exit code: 0 only if every check passed.
int RunLauncher(const Options& options);

}  // namespace tandem::digits
