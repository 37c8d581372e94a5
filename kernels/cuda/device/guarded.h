// File: guarded.h
//
// Guards (kernels/backend.h) on CUDA: kernels of our own look at them. cuBLASLt's, NCCL's, and copy engines
// cannot.
#pragma once

#include <string>

#include "kernels/backend.h"
#include "kernels/cuda/device/launch.h"

namespace tandem::cuda {

inline bool HonoursGuard(Guarded what) { return what != Guarded::kCopyEngine && what != Guarded::kMatmul; }

// FAILED_PRECONDITION for a guard on work that would run all the same.
inline Status CheckUnguarded(const Guard& guard, const char* what) {
  return guard.word == nullptr ? Status::Ok()
                               : FailedPrecondition(std::string(what) + " cannot be cancelled");
}

inline DeviceGuard DeviceGuardOf(const Guard& guard) {
  return {reinterpret_cast<const uint64_t*>(guard.word), guard.value};
}

}  // namespace tandem::cuda
