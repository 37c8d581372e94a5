// File: gpu_watch.h
//
// `GpuWatch`: a thread that looks at the GPUs once a second and keeps their condition.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "daemon/observe/gpu_health.h"
#include "daemon/topology/topology.h"
#include "tandem/status.h"

namespace tandem::daemon {

class GpuWatch {
 public:
  // Called on the watch's thread, and by Start: `gpu` had an XID that is a fault of the GPU.
  using OnFault = std::function<void(int gpu, uint32_t xid)>;

  // The first look is over when this returns. RESOURCE_EXHAUSTED without a thread.
  static Result<std::unique_ptr<GpuWatch>> Start(std::unique_ptr<GpuHealthSource> source,
                                                 const Topology& topology, OnFault on_fault);
  ~GpuWatch();
  GpuWatch(const GpuWatch&) = delete;
  GpuWatch& operator=(const GpuWatch&) = delete;

  // By GPU. Thread-safe, as all below.
  std::vector<GpuCondition> Conditions();
  // An operator has seen to the GPU: XIDs of before are no fault any more.
  void Acknowledge(int gpu);

 private:
  GpuWatch(std::unique_ptr<GpuHealthSource> source, OnFault on_fault);
  void Take(std::vector<GpuReading> readings);
  void Run();

  const std::unique_ptr<GpuHealthSource> source_;
  const OnFault on_fault_;
  Mutex mutex_;
  std::condition_variable changed_;
  bool stops_ TANDEM_GUARDED_BY(mutex_) = false;
  std::vector<GpuCondition> conditions_ TANDEM_GUARDED_BY(mutex_);
  std::thread thread_;
};

// The number of NVLinks that each GPU should have. It is the number of now, or with NVSwitches that of the
// best GPU of the same model.
std::vector<int> ExpectedLinks(const Topology& topology, const std::vector<GpuReading>& first);

}  // namespace tandem::daemon
