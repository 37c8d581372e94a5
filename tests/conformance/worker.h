// File: worker.h
//
// The rank's side of a run: serves its launcher, which says which case to run, so that all ranks are at the
// same one and whoever is late is known.
#pragma once

#include "tests/conformance/options.h"

namespace tandem::conformance {

// Serves the launcher on kWorkerIn and kWorkerOut until it says to end. The program's exit code.
int RunWorker(const Options& options);

}  // namespace tandem::conformance
