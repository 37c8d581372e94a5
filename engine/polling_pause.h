// File: polling_pause.h
//
// How the engine waits between two looks while something is under way: hot at first (SpinBudget says for how
// long), then yielding the CPU every 5 µs, then asleep for ever longer up to 50 µs. A GPU's write wakes
// nobody, so there is nothing better to wait for.
//
// The longest nap delays the next launch on all ranks if a program's end or a doorbell falls into it. So an
// engine yields for ten milliseconds before it naps: longer than most programs run. Where others
// want the CPU, which shows by yields that take long, it naps after 60 µs.
#pragma once

#include <cstdint>

#include "common/spin_budget.h"

namespace tandem::engine {

class PollingPause {
 public:
  // The thread's clock and the two ways to give its CPU away; tests have their own.
  struct Calls {
    uint64_t (*now_ns)();
    void (*yield)();
    void (*nap)(uint64_t ns);
  };
  PollingPause();
  explicit PollingPause(const Calls& calls) : calls_(calls) {}

  // Something happened: the next pauses are short again.
  void Reset() {
    if (spins_ > 0) budget_.End(spins_ <= most_spins_);
    spins_ = 0;
  }
  // `patient`: skip the hot phases (only captured launches live, and none has rung for a while).
  void Pause(bool patient);

 private:
  const Calls calls_;
  SpinBudget budget_;
  int spins_ = 0;  // pauses since the last reset; past most_spins_ they yield or nap
  int most_spins_ = 0;
  uint64_t start_ns_ = 0, yielded_ns_ = 0;
  bool crowded_ = false;  // a yield took long, some waits ago at most
  unsigned waits_ = 0;
};

}  // namespace tandem::engine
