// File: polling_pause.h
//
// How the engine waits between two looks while something is under way: hot at first (SpinBudget says for how long), then yielding the CPU, then asleep
// for ever longer up to 50 µs. A GPU's write wakes nobody, so there is nothing better to wait for.
#pragma once

#include <cstdint>

#include "common/spin_budget.h"

namespace tandem::engine {

class PollingPause {
 public:
  // Something happened: the next pauses are short again.
  void Reset() {
    if (spins_ > 0) budget_.End(spins_ <= most_spins_);
    spins_ = 0;
  }
  // `patient`: skip the hot phases (only captured launches live, and none has rung for a while).
  void Pause(bool patient);

 private:
  SpinBudget budget_;
  int spins_ = 0;       // pauses since the last reset; past most_spins_ they yield or nap
  int most_spins_ = 0;
  uint64_t start_ns_ = 0;
};

}  // namespace tandem::engine
