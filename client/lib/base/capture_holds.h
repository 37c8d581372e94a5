// File: capture_holds.h
//
// `CaptureHolds`: the captures of this process that have a `CaptureHold`, and what these keep.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "tandem/capture_hold.h"

namespace tandem::client {

// Thread-safe. One a process, never destroyed.
class CaptureHolds {
 public:
  static CaptureHolds& Get();

  // A hold for the capture, whose id is never used again. FAILED_PRECONDITION: it has one.
  Result<std::unique_ptr<CaptureHold>> Add(uint64_t capture);
  // Gives the capture's hold what `make` returns, once for each `key`. Objects are dropped with the hold, on
  // the thread that drops it. False: the capture has no hold.
  bool Keep(uint64_t capture, const void* key, const std::function<std::shared_ptr<void>()>& make);

 private:
  class Hold;

  std::mutex mutex_;
  std::map<uint64_t, std::map<const void*, std::shared_ptr<void>>> kept_;  // by capture
};

// The id of the capture that a CUDA stream is in. FAILED_PRECONDITION: in none. Defined by the build's
// device.
Result<uint64_t> CudaCaptureId(void* stream);

}  // namespace tandem::client
