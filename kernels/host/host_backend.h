// File: host_backend.h
//
// The host backend: an emulated GPU whose memory is memfds and whose lanes are threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/backend.h"
#include "tandem/status.h"

namespace tandem {

struct HostBackendOptions {
  int gpu = 0;                            // the emulated GPU's index; names its segments
  int hardware_queues = 8;                // 1 to 32; lanes alias onto them
  size_t memory_bytes = size_t{8} << 30;  // of this emulated GPU, in all
  int visibility_delay_us = 0;            // > 0: the mode that delays copies and signals at random
  uint64_t seed = 0;                      // of the delays
  bool emulated_fused = false;            // claims fused kernels; their programs run step by step
};

// Makes an emulated GPU. INVALID_ARGUMENT when an option is out of range.
//
// AllocateSegment charges the segment to the GPU's memory until the last mapping of it that this backend made
// has ended (one that was never mapped stays charged). When the backend ends its queues are shut down: lanes
// that still wait for a word are abandoned. Lanes may be destroyed after it, but not used.
Result<std::unique_ptr<Backend>> MakeHostBackend(const HostBackendOptions& options);

}  // namespace tandem
