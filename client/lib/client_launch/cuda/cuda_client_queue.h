// File: cuda_client_queue.h
//
// `CudaClientQueue`: client-placed launches on CUDA (docs/client-placement.md). A launch is one kernel on the
// caller's stream, with products, copies and sums of the rank's own memory before and behind it. Kernels
// count themselves in device memory, so that a replay of a graph has its number.
//
// All launches of a group follow one another, whatever their streams and graphs. One event gives the order:
// it is recorded behind each eager launch and at the end of each graph. The next launch waits for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "client/lib/client_launch/client_queue.h"
#include "client/lib/client_launch/cuda/client_pages.h"
#include "client/lib/client_launch/cuda/client_products.h"
#include "client/lib/client_launch/cuda/cuda_client_work.h"
#include "client/lib/cuda/cuda_launch_stream.h"
#include "kernels/cuda/device/cuda_device.h"

namespace tandem::client {

class ClientGroup;

// Thread-safe. Launches in flight and graphs hold their plan, and with it the group and its queue.
class CudaClientQueue final : public ClientQueue {
 public:
  using Clock = std::chrono::steady_clock;
  // `group` owns the queue. `products`: of the pages' GPU.
  CudaClientQueue(ClientGroup& group, std::unique_ptr<ClientPages> pages,
                  std::shared_ptr<ClientProducts> products)
      : group_(group), pages_(std::move(pages)), products_(std::move(products)) {}

  Result<std::shared_ptr<ClientWork>> Prepare(const plan::RankProgram& program,
                                              std::vector<runtime::SlotLimit> slots,
                                              const ClientLaunchMemory& memory, Trials trials) override;
  Status Launch(LaunchStream& stream, ClientWork& work, ClientCall call) override;
  Status Failed() const override;
  void PollFailures() override;
  std::chrono::milliseconds PollInterval() const override;
  void ReportProgress() override;
  Status ReportFinal() override;
  Result<uint64_t> Stop(Clock::time_point deadline) override;
  Status Restart(uint64_t number) override;
  Status Vacate() override;
  Status Refill() override;

  // True if no launch or replay of the group is under way on the GPU, or the GPU is lost. From any thread.
  bool HaveLaunchesEnded();

 private:
  // Eager launches of one plan's member on one stream that may not have ended.
  struct InFlight {
    std::shared_ptr<ClientPlanState> state;
    std::shared_ptr<void> keep;
    uint64_t stream_id = 0;
    uint64_t launches = 0;
  };
  // The capture that a launch was last recorded in.
  struct Capture {
    uint64_t id = 0;
    CUstream stream = nullptr;     // the last launch was captured on it
    CUgraphNode last = nullptr;    // the last of the last launch's nodes
    CUgraphNode record = nullptr;  // records the order event behind all launches
  };

  Status LaunchEager(CudaLaunchStream& stream, CudaClientWork& work, std::span<CudaClientStep> steps,
                     const ClientCall& call);
  Status LaunchCaptured(CudaLaunchStream& stream, CudaClientWork& work, std::span<CudaClientStep> steps,
                        const ClientCall& call);
  // Keeps a plan for the graph of a capture: by the capture's hold, else by the graph itself.
  Status KeepForGraph(CudaLaunchStream& stream, uint64_t capture, const std::shared_ptr<void>& keep);
  // The failure that launches under way end with; OK while they do not fail. Nothing while tandemd's verdict
  // is awaited, which names the cause.
  std::optional<Status> CheckFailure();
  // Whether all launches have ended; true, too, if the GPU is lost.
  bool PollOrder();
  // The report of the first failed kernel as a status; OK without one.
  Status ReportedFailure() const;

  ClientGroup& group_;
  const std::unique_ptr<ClientPages> pages_;
  const std::shared_ptr<ClientProducts> products_;
  cuda::GroupDeviceState group_state_ = pages_->group_state();

  std::mutex prepare_mutex_;  // of the members up to `dense_packets_`
  // Shared by all plans, because their launches follow one another. Null before the first plan.
  std::shared_ptr<cuda::LocalWork> local_;
  std::shared_ptr<ClientFusedState> fused_;  // likewise
  // This rank's signals, once a plan may have dense packets there: a renewal empties them.
  std::shared_ptr<void> own_signals_;
  CUdeviceptr dense_packets_ = 0;

  std::mutex mutex_;  // held in the driver's calls, which may block behind many launches
  std::vector<InFlight> in_flight_;
  std::vector<std::weak_ptr<ClientPlanState>> captured_;  // plans with launches in graphs
  Capture capture_;
  bool ever_captured_ = false;
  uint64_t replays_failed_ = 0;  // ClientGroup::Failures when replays were last told of one
  uint64_t last_count_ = 0;      // of launches, at the last ReportProgress
  uint64_t last_stream_ = 0;     // of the last eager launch
};

}  // namespace tandem::client
