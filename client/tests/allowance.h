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
