// File: embedded.h
//
// A tandemd of one job (`--embedded DIR`). It ends once the job's processes have ended. Its files lie in one
// private directory, which it removes then.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "tandem/status.h"

namespace tandem::daemon {

// Processes may need this long to attach the first time: engines of others may be starting on the same CPUs.
inline constexpr std::chrono::milliseconds kFirstSessionWait{20000};
// A process keeps its session to its end. A pause between two of them is a job's that has begun anew.
inline constexpr std::chrono::milliseconds kNoSessionWait{2000};

struct SessionCounts {
  uint64_t now = 0;     // sessions that there are
  uint64_t so_far = 0;  // and all that have been, with these
};

// When a tandemd of one job ends. Not thread-safe.
//
//   waiting for the first session --session--> serving --the last one ends--> without a session
//   without a session --session--> serving
//   waiting, without a session --time--> over
class JobWatch {
 public:
  using Clock = std::chrono::steady_clock;

  explicit JobWatch(Clock::time_point now) : since_(now) {}

  // Whether the job is over. Called again and again; sessions may come and go between two calls.
  bool IsOver(SessionCounts sessions, Clock::time_point now);

 private:
  uint64_t seen_ = 0;        // of SessionCounts::so_far
  Clock::time_point since_;  // no session since then
};

// Makes `directory` (0700) if it is absent. FAILED_PRECONDITION if it is no directory, another user's, open to
// other users, or holds more than what a starter has put there: the log and the file whose lock names the
// process. Such a directory is not removed later.
Status PrepareEmbeddedDirectory(const std::string& directory);

// Removes it with all that it holds. Symbolic links are removed, not followed.
Status RemoveEmbeddedDirectory(const std::string& directory);

}  // namespace tandem::daemon
