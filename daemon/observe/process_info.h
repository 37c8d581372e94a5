// File: process_info.h
//
// This process's use of the machine, read from /proc and the kernel's limits. Thread-safe.
#pragma once

#include <cstdint>

namespace tandem::daemon {

struct ProcessInfo {
  uint64_t rss_bytes = 0;
  uint64_t virtual_bytes = 0;
  double cpu_seconds = 0;         // user and system
  double start_time_seconds = 0;  // since the epoch; 0: not known
  uint64_t descriptors = 0;       // open
  uint64_t descriptor_limit = 0;  // RLIMIT_NOFILE, soft; 0: none
  uint64_t locked_limit_bytes = 0;
};
ProcessInfo ReadProcessInfo();

// Memory that the machine can still give out, and that it has, in bytes (MemAvailable and MemTotal; 0 if
// unreadable).
struct MachineMemory {
  uint64_t available_bytes = 0;
  uint64_t total_bytes = 0;
};
MachineMemory ReadMachineMemory();

// Raises the soft limit of open descriptors to the hard one.
void RaiseDescriptorLimit();

}  // namespace tandem::daemon
