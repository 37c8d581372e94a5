// File: client_pages.h
//
// `ClientPages`: the memory of one rank's client-placed launches that no other process maps: the counters on
// the GPU, and the pages of the host that kernels look at and write to.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "client/lib/base/client_device.h"
#include "common/shared_memory.h"
#include "ipc/verdict_page.h"
#include "kernels/cuda/collectives/client_launch.h"
#include "kernels/cuda/device/cuda_device.h"

namespace tandem::client {

// Given back without waiting for a GPU, on any thread. No kernel may use it any more by then.
class ClientPages {
 public:
  // Zeroed counters. Waits for the GPU.
  static Result<std::unique_ptr<ClientPages>> Make(std::shared_ptr<cuda::CudaDevice> device,
                                                   ClientDevice& pins, const std::string& gpu_uuid,
                                                   VerdictPage verdict);
  ~ClientPages();

  cuda::CudaDevice& device() const { return *device_; }
  const std::shared_ptr<cuda::CudaDevice>& shared_device() const { return device_; }
  CUevent order() const { return order_; }
  const VerdictPage& verdict() const { return verdict_; }
  // Without words, time limit, tag and plan.
  cuda::GroupDeviceState group_state() const;
  // The first failed kernel writes it; `kind` last.
  const cuda::LaunchReport* report() const { return &host()->report; }
  // Reads how many launches have ended. DEADLINE_EXCEEDED: the GPU does not answer.
  Result<uint64_t> ReadCount();
  // Has the GPU read it; does not wait.
  Status StartCount();
  // The count that the GPU has last read.
  uint64_t LastCount() const;
  // The last launch that a block has finished: behind a failure the counters differ. No launch is under way.
  // DEADLINE_EXCEEDED: the GPU does not answer.
  Result<uint64_t> ReadHighestCount();
  // Sets all counters to `count`, and forgets the failure. No launch is under way. DEADLINE_EXCEEDED.
  Status Restart(uint64_t count);
  // Gives up the counters' memory, and keeps its addresses and what it holds, while no launch is under way. Counts are
  // those of before, until Refill; Restart is not called. Both wait for the GPU, with the device's context current,
  // and are idempotent.
  Status Vacate();
  Status Refill();

 private:
  struct HostPage {
    cuda::LaunchReport report;
    alignas(64) uint64_t count;
    uint64_t counters[cuda::kLaunchCounters];  // of renewals
  };
  struct DevicePage {
    uint64_t counters[cuda::kLaunchCounters];
    uint64_t failed, looked;
    uint64_t pushed[cuda::kPushedUnits];
  };

  ClientPages() = default;
  HostPage* host() const { return host_->As<HostPage>(); }
  DevicePage* counters() const { return reinterpret_cast<DevicePage*>(memory_->data()); }
  Status AwaitService() const;
  Status StartCountLocked();

  std::shared_ptr<cuda::CudaDevice> device_;
  std::shared_ptr<cuda::VmmAllocation> memory_;
  std::shared_ptr<Mapping> host_;
  VerdictPage verdict_;
  std::shared_ptr<void> host_pin_, verdict_pin_;
  CUevent order_ = nullptr;
  std::mutex mutex_;                  // of reads of the counters, and of what follows
  std::unique_ptr<DevicePage> kept_;  // while the memory is given up: what it held
};

}  // namespace tandem::client
