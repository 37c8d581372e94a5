// File: process_identity.h
//
// `ProcessIdentity`: a process's name that no later process takes over, for saying in shared memory who one
// is.
#pragma once

#include <cstdint>

namespace tandem {

// Valid within one pid namespace, with /proc mounted.
struct ProcessIdentity {
  int pid = 0;               // 0: nobody
  uint64_t start_ticks = 0;  // when it was started, in clock ticks since boot; 0: not known

  // That of the process which has `pid` now; for this one, ::getpid().
  static ProcessIdentity Of(int pid);
  // True once the process has ended (or has become a zombie, which runs nothing). False when in doubt. Takes
  // a few system calls. Thread-safe.
  bool Gone() const;
};

}  // namespace tandem
