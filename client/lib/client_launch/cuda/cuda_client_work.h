// File: cuda_client_work.h
//
// `CudaClientWork`: a rank program that runs on the caller's stream as one kernel that meets the peers, with
// products, copies, sums and norms of the rank's own memory before and behind it. It keeps the parameters of
// the launches that were made lately.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "client/lib/client_launch/client_queue.h"
#include "client/lib/client_launch/cuda/client_fused_state.h"
#include "client/lib/client_launch/cuda/client_staging.h"
#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/client_launch/client_plan.h"
#include "kernels/cuda/client_launch/local_work.h"
#include "runtime/executor/executor.h"

namespace tandem::client {

// The work of one launch, in order. One of them is the kernel that meets the peers.
using CudaClientStep =
    std::variant<cuda::ClientKernelLaunch, MatmulArgs, CopyArgs, ReduceArgs, NormArgs, StagingCopy>;

// Thread rule: one thread at a time.
class CudaClientWork final : public ClientWork {
 public:
  // UNIMPLEMENTED: the program is not one kernel for a collective with local work around it.
  static Result<std::shared_ptr<CudaClientWork>> Make(const plan::RankProgram& program,
                                                      std::vector<runtime::SlotLimit> slots,
                                                      const ClientLaunchMemory& memory);

  // Loads the kernels into the current context, and lets cuBLASLt's algorithms be chosen. Addresses of
  // operands play no part in which kernels they are. Without trials the first launch does so: kernels of the
  // family's other members are loaded. `local`: asked for if there is local work.
  using GetLocalWork = std::function<Result<std::shared_ptr<cuda::LocalWork>>()>;
  // `fused`: asked for if the kernel is a fused matmul of many rows.
  using GetFusedState = std::function<Result<std::shared_ptr<ClientFusedState>>()>;
  Status Load(const GetLocalWork& local, const GetFusedState& fused, Trials trials);
  // The parameters for these operands, without the state of the group; good until the next call.
  // INVALID_ARGUMENT: an operand is no memory that the GPU reaches. `driver`: asked once for each new set of
  // operands.
  Result<std::span<CudaClientStep>> PreparedFor(std::span<const runtime::SlotAddress> slots,
                                                cuda::CudaDriver& driver);
  // Puts a launch onto `stream`, whose context is current. On an error a part of the local work may be there.
  Status Enqueue(std::span<CudaClientStep> steps, const cuda::GroupDeviceState& group_state, CUstream stream);

 private:
  CudaClientWork() = default;
  std::array<Word*, plan::kMaxWorldSize> FusedWords() const;
  cuda::ClientFusedPlaces FusedPlaces() const;
  Result<std::vector<CudaClientStep>> Build(std::span<const runtime::SlotAddress> slots);
  // The same, with norms merged where that goes, or with copies of operands that the kernels cannot address.
  Result<std::vector<CudaClientStep>> BuildStaged(std::span<const runtime::SlotAddress> slots);
  Status CheckReachable(std::span<const runtime::SlotAddress> slots, cuda::CudaDriver& driver) const;

  // Operands that a launch was made with, and its parameters. A model's layers may share one plan.
  struct CachedArguments {
    std::vector<runtime::SlotAddress> slots;
    uint64_t used = 0;
    std::vector<CudaClientStep> steps;
  };

  ClientLaunchMemory memory_;
  bool has_local_work_ = false, loads_at_launch_ = false;
  std::vector<uint64_t> slot_bytes_;
  std::unique_ptr<runtime::CompiledProgram> program_;
  std::shared_ptr<cuda::LocalWork> local_;  // null: there is none
  bool is_fused_ = false;
  std::unique_ptr<ClientStaging> staging_;   // null: not of a fused matmul
  std::shared_ptr<ClientFusedState> fused_;  // null until Load, or not of a fused matmul
  std::vector<CachedArguments> argument_cache_;
  uint64_t uses_ = 0;
};

}  // namespace tandem::client
