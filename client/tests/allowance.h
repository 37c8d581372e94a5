// File: allowance.h
//
// `Allowance`: how much of a resource a tested call gets. A program that is linked with allowance.cc has an
// allocator with one.
#pragma once

namespace tandem {

// How many more requests of a resource succeed before one fails. Requests outside of an `InCall` all succeed,
// and do not count.
struct Allowance {
  long left = -1;      // negative: all
  bool met = false;    // a request has failed
  bool lasts = false;  // once one has failed, all do

  // Makes a request. Returns whether it succeeds.
  bool Spend();
};

// The calling thread's allowance of memory.
Allowance& Allocations();

// Memory of all threads together that have called JoinBackground. Thread-safe.
class BackgroundAllocations {
 public:
  // From now on the calling thread's requests of memory, but for the test's own, are of these.
  static void JoinBackground();
  // `left` more requests succeed before one fails; negative: all succeed.
  static void Allow(long left);
  // Whether a request has failed since Allow.
  static bool Met();
};

// Says, for as long as it lives, whether this thread is in a tested call. The test's own allocations succeed.
class InCall {
 public:
  explicit InCall(bool on);
  ~InCall();
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  const bool before_;
};

}  // namespace tandem
