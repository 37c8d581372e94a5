// File: fake_torch.h
//
// The functions of torch's stable ABI that kernels use, and a libtandem.so, both of this process: a test
// chooses the place at which memory runs out or a function of theirs fails.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/tandem.h"

namespace tandem::torch_ops {

// How many more of a resource a thread gets in a call before a request fails; negative: all.
struct Allowance {
  long left = -1;
  bool met = false;    // a request has failed
  bool lasts = false;  // all requests fail from then on

  bool Spend();
};

// What the kernels meet. Of the test's thread.
struct FakeTorch {
  bool in_call = false;  // what the test itself needs does not fail
  Allowance allocations, shims;
  bool python_fails = false;   // Python's kernels fail
  bool launches_fail = false;  // libtandem.so's launches return a status
  bool wait_is_long = false;   // a launch outlasts the kernel's first wait
  bool in_flight = false;      // a launch has not ended
  uint64_t group = 0;          // where Python adds its plans
  int live = 0;                // tensors, lists, texts and statuses that somebody owns
};
FakeTorch& Fake();

// Sets `in_call` for as long as it lives.
class InCall {
 public:
  explicit InCall(bool on) : before_(Fake().in_call) { Fake().in_call = on; }
  ~InCall() { Fake().in_call = before_; }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  const bool before_;
};

// Lets kernels use the libtandem.so of this process.
void UseFakeLibrary();

using Kernel = void (*)(StableIValue* stack, uint64_t, uint64_t);
// The kernel of an op, as it was registered for CPU tensors.
Kernel KernelOf(const std::string& name);

// Values of a kernel's stack. The caller owns them until a kernel has them.
StableIValue NewTensor(float value);
StableIValue NewText(const std::string& text);
StableIValue NewList(const std::vector<StableIValue>& elements);
// The tensor's first element.
float ValueOf(StableIValue tensor);
void DeleteTensor(StableIValue tensor);
std::vector<StableIValue> TakeList(StableIValue list);
void DeleteStatus(tandem_status* status);

}  // namespace tandem::torch_ops
