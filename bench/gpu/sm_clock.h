// File: sm_clock.h
//
// The clock of a GPU's SMs while it works, as they count it themselves.
#pragma once

#include <cstdint>

#include "tandem/status.h"

struct CUstream_st;

namespace tandem::bench {

struct ClockStamp {
  uint64_t cycles;  // of SM `sm`
  uint64_t ns;
  uint64_t sm;
};

// Enqueues the writing of `*stamp`, device memory.
Status StampClock(ClockStamp* stamp, CUstream_st* stream);

// MHz between two stamps; 0 if they are of different SMs.
inline double Megahertz(const ClockStamp& first, const ClockStamp& second) {
  if (first.sm != second.sm || second.ns <= first.ns) return 0;
  return 1e3 * static_cast<double>(second.cycles - first.cycles) / static_cast<double>(second.ns - first.ns);
}

}  // namespace tandem::bench
