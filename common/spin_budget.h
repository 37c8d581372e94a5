// File: spin_budget.h
//
// How often a polling loop spins before it yields its CPU. Spinning is the fastest wait while the
// other side runs on another CPU, and pure loss while the other side waits for this CPU. The last
// wait decides: whether spinning was enough for it. Now and then a wait spins in full to detect a
// change.
#pragma once

namespace tandem {

// Not thread-safe: each polling thread has one object for all waits.
class SpinBudget {
 public:
  // Spins for the wait that begins now.
  int Begin() { return enough_ || ++brief_waits_ % kProbeEvery == 0 ? kMaxSpins : kFewSpins; }
  // That wait has ended; `spinning_was_enough`: before it came to a yield.
  void End(bool spinning_was_enough) { enough_ = spinning_was_enough; }

 private:
  static constexpr int kMaxSpins = 64;  // about 2 µs: a hand-over between two CPUs takes a tenth of that
  static constexpr int kFewSpins = 4;
  static constexpr unsigned kProbeEvery = 16;
  bool enough_ = true;
  unsigned brief_waits_ = 0;
};

}  // namespace tandem
