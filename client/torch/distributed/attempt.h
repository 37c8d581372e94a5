// File: attempt.h
//
// A thread's attempt to run a collective of torch.distributed by Tandem. Python may decline it. Collectives that
// the thread calls meanwhile are the process group's own.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::torch_distributed {

// How Python has declined the call.
enum class Decline : uint8_t {
  kNone,
  kOnce,   // this call, as in a capture before a plan is there
  kKind,   // every call of this kind in the group
  kGroup,  // every call of the group
};

struct Attempt {
  Decline decline = Decline::kNone;
  std::string reason;
};

// The attempt that this thread is in; null outside.
Attempt*& ThisAttempt();

// Whether the thread's collectives are coalesced by their backends.
bool& ThisThreadCoalesces();

// Makes an attempt this thread's for as long as it lives.
class AttemptScope {
 public:
  explicit AttemptScope(Attempt* attempt) : outer_(ThisAttempt()) { ThisAttempt() = attempt; }
  ~AttemptScope() { ThisAttempt() = outer_; }
  AttemptScope(const AttemptScope&) = delete;
  AttemptScope& operator=(const AttemptScope&) = delete;

 private:
  Attempt* outer_;
};

}  // namespace tandem::torch_distributed
