// File: profiler_range.h
//
// `ProfilerRange`: an NVTX range on the engine's thread for a profiler's timeline, from its construction to
// its end. Where no profiler has been injected, or the build has no NVTX, it is nothing.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#ifdef TANDEM_HAVE_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace tandem::engine {

class ProfilerRange {
 public:
  // "<what> plan 12 launch 5".
  ProfilerRange(const char* what, uint64_t plan, uint64_t launch) {
#ifdef TANDEM_HAVE_CUDA
    // Profilers announce themselves so; names cost more than the launch's bookkeeping.
    static const bool injected = std::getenv("NVTX_INJECTION64_PATH") != nullptr;
    active_ = injected;
    if (active_) {
      nvtxRangePushA(
          (std::string(what) + " plan " + std::to_string(plan) + " launch " + std::to_string(launch))
              .c_str());
    }
#else
    (void)what, (void)plan, (void)launch;
#endif
  }
  ~ProfilerRange() {
#ifdef TANDEM_HAVE_CUDA
    if (active_) nvtxRangePop();
#endif
  }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  [[maybe_unused]] bool active_ = false;
};

}  // namespace tandem::engine
