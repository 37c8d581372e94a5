// File: random_delay.h
//
// The visibility-delay mode: every task of a queue runs a random time later than it could, and copies run in
// random pieces with pauses. A lane's own order holds, as on a GPU; what another lane or rank sees without
// waiting for a word is then often too old, so that a missing wait shows as wrong results.
#pragma once

#include <cstdint>
#include <random>

namespace tandem::host {

// One queue's delays. Used by that queue's thread only.
class RandomDelay {
 public:
  RandomDelay(int max_us, uint64_t seed) : max_us_(max_us), random_(seed) {}

  // Sleeps up to `max_us`; every second time not at all, so that the order of ranks changes often.
  void Pause();
  // A random number in [1, limit], `limit` positive.
  int64_t Piece(int64_t limit);

 private:
  int max_us_;
  std::mt19937_64 random_;
};

}  // namespace tandem::host
