// File: polling_pause.h
//
// How the engine waits between two looks while something is under way: hot at first, then yielding the CPU, then asleep
// for ever longer up to 50 µs. A GPU's write wakes nobody, so there is nothing better to wait for.
#pragma once

#include <cstdint>

namespace tandem::engine {

class PollingPause {
 public:
  // Something happened: the next pauses are short again.
  void Reset() { spins_ = 0; }
  // `patient`: skip the hot phases (only captured launches live, and none has rung for a while).
  void Pause(bool patient);

 private:
  int spins_ = 0;
  uint64_t start_ns_ = 0;
};

}  // namespace tandem::engine
