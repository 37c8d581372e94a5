// File: cuda_backend.h
//
// The CUDA backend: one GPU; segments are VMM allocations, lanes are streams, words are waited for and
// written by stream memory operations.
//
// Words in device memory lie in mapped segments. Words in host memory must be registered before a lane uses
// them: Backend::RegisterHostMemory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/backend.h"
#include "tandem/status.h"

namespace tandem {

struct CudaBackendOptions {
  int device = 0;  // ordinal among the visible devices
  // Processes whose kernels may wait for each other on this device: each takes a part of the SMs, so that all
  // find room.
  int engines = 1;
  // Candidates of cuBLASLt that PrepareMatmul times for each shape; 1 takes the first without a trial.
  int matmul_candidates = 8;
  // Lanes of MakeDualStreamLane have two streams. For a process under MPS: without it, it makes no difference
  // which one a lane is on.
  bool dual_stream_lanes = false;
  // Bytes of the device's memory in use, by any process. Asked before the context is made and after all has
  // been loaded, for Backend::OwnMemoryBytes. CUDA itself has no answer without making the context. Empty:
  // not known. Called by another thread the first time, beside the driver's start.
  std::function<uint64_t()> memory_used = {};
  // Told when a phase of the start has ended, by the calling thread. Empty: nobody asks.
  std::function<void(std::string_view phase)> ended_phase = {};
};

// Retains the device's primary context and loads every kernel. UNAVAILABLE without a driver or a device. The
// context stays current on the calling thread; every call of the backend makes it current on its own thread.
// The primary context is never released: it ends with the process, as do the libraries' handles in it.
Result<std::unique_ptr<Backend>> MakeCudaBackend(const CudaBackendOptions& options);

// The number of visible devices; 0 without a driver.
int CudaDeviceCount();

// NCCL's id for a new communicator, for CommunicatorOptions::unique_id of all its ranks.
Result<std::string> MakeNcclUniqueId();

}  // namespace tandem
