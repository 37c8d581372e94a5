// File: client_skinny.cuh
//
// The skinny kernel's side of client placement: the launch's number comes from the CTA's counter. It lies in
// shared memory, where the few threads that ask for it read it: registers are what the kernel is short of.
//
// Two CTAs of a cluster feed each other, so neither may end early. If a CTA finds the group failed, it gives
// up at its begin and runs on.
#pragma once

#include <cstdint>

#include "kernels/cuda/collectives/launch_context.cuh"
#include "kernels/cuda/device/dependent.cuh"
#include "kernels/cuda/skinny/client_skinny.h"
#include "kernels/cuda/skinny/skinny_launch_context.cuh"
#include "kernels/cuda/skinny/skinny_variant.cuh"

namespace tandem::cuda {

// A CTA's launch, in shared memory.
struct SkinnyNow {
  uint64_t number;
  int64_t half_offset;
  uint32_t given_up;
};
__device__ __forceinline__ SkinnyNow& Now() {
  __shared__ SkinnyNow now;
  return now;
}

// --- instead of those of skinny_launch_context.cuh ---

__device__ __forceinline__ bool HasGivenUp(const ClientSkinnyLaunch& /*launch*/) {
  return *static_cast<const volatile uint32_t*>(&Now().given_up) != 0;
}
__device__ __forceinline__ void Abort(const ClientSkinnyLaunch& /*launch*/) {
  *static_cast<volatile uint32_t*>(&Now().given_up) = 1;
}
__device__ __forceinline__ ClientLaunchContext LaunchContextOf(const ClientSkinnyLaunch& launch) {
  return {launch.group_state, Now().number};
}

__device__ __forceinline__ bool BeginLaunch(const ClientSkinnyLaunch& launch) {
  WaitForPrimary();
  constexpr unsigned kIdleThread = 96;  // its warp has nothing else to do before the threads first meet
  if (threadIdx.x == kIdleThread) {
    const ClientLaunchContext context(launch.group_state);
    Now().number = context.number();
    Now().half_offset = context.half() * launch.half_bytes;
    Now().given_up = context.HasFailed() ? 1 : 0;
  }
  return false;
}
__device__ __forceinline__ void EndLaunch(const ClientSkinnyLaunch& launch) {
  __syncthreads();  // no thread waits any more
  TriggerDependents();
  if (!HasGivenUp(launch)) LaunchContextOf(launch).ReportProgress();
}

__device__ __forceinline__ uint64_t WordValue(const ClientSkinnyLaunch& launch) {
  return Now().number << kLaunchTagBits | launch.group_state.tag;
}
__device__ __forceinline__ std::byte* AreaOf(const ClientSkinnyLaunch& launch, int rank) {
  return launch.area[rank] + Now().half_offset;
}
__device__ __forceinline__ void ChooseHalf(const ClientSkinnyLaunch& launch, const CUtensorMap** map) {
  if (*map == &launch.others && (Now().number & 1) != 0) *map = &launch.odd_others;
}
__device__ __forceinline__ void PrefetchOthers(const ClientSkinnyLaunch& launch) {
  ptx::PrefetchMap(&launch.others);
  ptx::PrefetchMap(&launch.odd_others);
}
__device__ __forceinline__ uint64_t* PushedUnits(const ClientSkinnyLaunch& launch) {
  return launch.group_state.pushed;
}
__device__ __forceinline__ uint64_t PushStamp(const ClientSkinnyLaunch& /*launch*/) { return Now().number; }

// How a wait of the collectives asks the test hooks of the fused kernels.
template <class TestHooks>
struct AskFusedTestHooks {
  __device__ static bool HasReached(uint64_t value, uint64_t seen) {
    return TestHooks::HasReached(seen, value);
  }
};

template <class TestHooks>
struct WordWaiter<TestHooks, ClientSkinnyLaunch> {
  const ClientSkinnyLaunch& launch;
  bool given_up = false;

  __device__ __forceinline__ void Wait(const uint64_t* word) {
    if (given_up) return;
    given_up = HasGivenUp(launch) || !LaunchContextOf(launch).Await<AskFusedTestHooks<TestHooks>>(word);
    if (given_up) Abort(launch);
  }
};

// As an engine's (skinny_arrival.cuh); another launch of a peer's ends it too.
template <class T, class TestHooks>
__device__ __forceinline__ void WatchShards(const ClientSkinnyLaunch& launch, const FusedShared<T>& shared) {
  const ClientLaunchContext context = LaunchContextOf(launch);
  const int lane = static_cast<int>(threadIdx.x) & 31, peers = launch.world - 1;
  const int offset = lane / peers, peer = lane % peers;
  const int from = peer + (peer >= launch.rank ? 1 : 0);
  const uint64_t* words = launch.arrived[from] + offset;
  uint64_t start_ns = 0;
  uint32_t polls = 0;
  for (int first = 0; first < launch.units;) {
    const bool exists = first + offset < launch.units;
    const uint64_t seen = exists ? LoadAcquire(words + first) : 0;
    const bool come = exists && context.HasArrived<AskFusedTestHooks<TestHooks>>(seen);
    bool give_up = come && !context.Accepts(seen, from);
    const uint32_t missing = ~__ballot_sync(0xFFFFFFFF, come);
    const int here = missing == 0 ? 32 : __ffs(static_cast<int>(missing)) - 1;  // words without a gap
    if (here < peers && ++polls % kPollsPerLook == 0) {
      if (start_ns == 0) start_ns = GlobalTimerNs();  // in all lanes: another may be `here` next time
      if (lane == here && !context.PollFailures(&start_ns, from, seen)) give_up = true;
    }
    if (__any_sync(0xFFFFFFFF, give_up || HasGivenUp(launch))) {
      Abort(launch);
      break;
    }
    if (here < peers) continue;
    TestHooks::AfterWait(WordValue(launch));
    __syncwarp();
    first += here / peers;
    if (lane == 0)
      StoreSharedRelease(shared.ArrivedStages(), min(first * launch.blocks_per_unit, launch.k_blocks));
    start_ns = 0;
  }
  if (lane == 0) StoreSharedRelease(shared.ArrivedStages(), launch.k_blocks);
}

}  // namespace tandem::cuda

// As TANDEM_SKINNY_VARIANTS.
#define TANDEM_CLIENT_SKINNY_VARIANTS(NAME, ...)                 \
  namespace tandem::cuda {                                       \
  std::span<const SkinnyVariant> ClientSkinnyVariants_##NAME() { \
    return AllSkinnyVariants<ClientSkinnyLaunch, __VA_ARGS__>(); \
  }                                                              \
  }
