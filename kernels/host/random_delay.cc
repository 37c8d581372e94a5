#include "kernels/host/random_delay.h"

#include <time.h>

namespace tandem::host {

void RandomDelay::Pause() {
  uint64_t draw = random_();
  if ((draw & 1) == 0 || max_us_ <= 0) return;
  auto microseconds = static_cast<int64_t>((draw >> 1) % (static_cast<uint64_t>(max_us_) + 1));
  timespec duration{microseconds / 1'000'000, (microseconds % 1'000'000) * 1000};
  nanosleep(&duration, nullptr);
}

int64_t RandomDelay::Piece(int64_t limit) {
  return 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
}

}  // namespace tandem::host
