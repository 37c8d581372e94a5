// File: context_scope.h
//
// The library acts on the user's threads: whatever it makes current there is undone before a call returns.
#pragma once

#include "drivers/cuda/cuda_driver.h"

namespace tandem::client {

// Restores the thread's current context at its end.
class ContextScope {
 public:
  explicit ContextScope(cuda::CudaDriver& driver) : driver_(driver) {
    Result<CUcontext> current = driver.CtxGetCurrent();
    known_ = current.ok();
    if (known_) before_ = *current;
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;
  ~ContextScope() {
    if (!known_) return;
    Result<CUcontext> current = driver_.CtxGetCurrent();
    if (current.ok() && *current != before_) (void)driver_.CtxSetCurrent(before_);
  }
  // The context that was current before; null if none was.
  CUcontext before() const { return before_; }

 private:
  cuda::CudaDriver& driver_;
  CUcontext before_ = nullptr;
  bool known_ = false;
};

// For calls off the launch path: a ContextScope in which calls that a capture elsewhere in the process would
// forbid are allowed. They touch no stream that captures.
class SlowCallScope {
 public:
  explicit SlowCallScope(cuda::CudaDriver& driver) : driver_(driver), context_(driver) {
    Result<CUstreamCaptureMode> mode = driver.ThreadExchangeStreamCaptureMode(CU_STREAM_CAPTURE_MODE_RELAXED);
    known_ = mode.ok();
    if (known_) mode_ = *mode;
  }
  SlowCallScope(const SlowCallScope&) = delete;
  SlowCallScope& operator=(const SlowCallScope&) = delete;
  ~SlowCallScope() {
    if (known_) (void)driver_.ThreadExchangeStreamCaptureMode(mode_);
  }

 private:
  cuda::CudaDriver& driver_;
  ContextScope context_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool known_ = false;
};

}  // namespace tandem::client
