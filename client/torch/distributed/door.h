// File: door.h
//
// What this thread's call of an op of torch.ops.tandem stands for: while a collective of torch.distributed is
// tried by Tandem, the collectives that it calls in turn are the process group's own, and Python may decline it.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::torch_distributed {

// How Python has declined the call.
enum class Decline : uint8_t {
  kNone,
  kOnce,   // this call alone, as in a capture before a plan is there
  kKind,   // all calls of its kind in this group
  kGroup,  // all calls of this group
};

struct Attempt {
  Decline decline = Decline::kNone;
  std::string reason;
};

// The attempt that this thread is in; null outside.
Attempt*& ThisAttempt();

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
