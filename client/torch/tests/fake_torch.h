// File: fake_torch.h
//
// `FakeTorch` stands for torch's stable ABI and for libtandem.so, as far as kernels use them. A test chooses
// the call at which one of their functions fails.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <string>
#include <vector>

#include "client/tests/allowance.h"
#include "tandem/tandem.h"

namespace tandem::torch_ops {

// All that kernels find of torch and libtandem.so. Each thread has one, and tests use that of the test's
// thread.
struct FakeTorch {
  Allowance shims;             // calls of torch's functions
  bool python_fails = false;   // kernels that are written in Python fail
  bool launches_fail = false;  // launches of libtandem.so return a status
  bool wait_is_long = false;   // a launch outlasts the kernel's first wait
  bool in_flight = false;      // a launch has not ended
  uint64_t group = 0;          // the group that kernels in Python add their plans to
  int live = 0;                // tensors, lists, texts and statuses that have an owner
};
FakeTorch& Fake();

// Lets kernels call the fake libtandem.so.
void UseFakeLibrary();

using Kernel = void (*)(StableIValue* stack, uint64_t, uint64_t);
// Returns the kernel that was registered for an op on CPU tensors.
Kernel KernelOf(const std::string& name);

// These make values of a kernel's stack. The caller owns a value until a kernel takes it.
StableIValue NewTensor(float value);
StableIValue NewText(const std::string& text);
StableIValue NewList(const std::vector<StableIValue>& elements);
// Returns the tensor's first element.
float ValueOf(StableIValue tensor);
void DeleteTensor(StableIValue tensor);
// Deletes the list, and returns its elements, which the caller owns.
std::vector<StableIValue> TakeList(StableIValue list);
void DeleteStatus(tandem_status* status);

}  // namespace tandem::torch_ops
