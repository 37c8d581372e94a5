// File: kernel_state.h
//
// Kernels and the package's Python part share this: the table, the thread's call under way, its failure.
#pragma once

#include <atomic>
#include <string>

#include "client/torch/memory_pool.h"
#include "client/torch/plan_table.h"

namespace tandem::torch_ops {

// The failure of a kernel of this thread, until Python takes it.
struct KernelFailure {
  std::string text;
  tandem_status* status = nullptr;
  bool there = false;
};

struct KernelThread {
  // The key of the call that Python runs now; null: none, or it has no key.
  const CallKey* handed_on = nullptr;
  bool python_failed = false;  // tandem_torch_fail was called in that call
  KernelFailure failure;
};

struct KernelCounts {
  std::atomic<uint64_t> launched = 0, handed_on = 0;
};

PlanTable& ThePlanTable();
MemoryPool& TheMemoryPool();
KernelThread& ThisThread();
KernelCounts& TheCounts();

}  // namespace tandem::torch_ops
