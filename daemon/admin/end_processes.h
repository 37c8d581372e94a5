// File: end_processes.h
//
// Ending other people's processes, for `tandemctl evict --gpu`: politely, then not.
#pragma once

#include <chrono>
#include <vector>

#include "tandem/status.h"

namespace tandem::daemon {

// Sends SIGTERM to all, and SIGKILL to those that are still there after `grace`; waits for their ends. Pids
// that have ended already are no error. By pidfds, so that a recycled pid is never hit once this has begun.
// PERMISSION_DENIED names a process that may not be ended, DEADLINE_EXCEEDED one that does not end by SIGKILL
// within 10 s.
Status EndProcesses(const std::vector<int>& pids, std::chrono::milliseconds grace);

}  // namespace tandem::daemon
