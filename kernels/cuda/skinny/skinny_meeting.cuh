// File: skinny_meeting.cuh
//
// How the skinny kernel knows its launch and its peers. `StartedSkinny`: an engine has started the launch,
// and all that differs from launch to launch is a parameter. A client's launches have PlacedSkinny
// (placed_skinny.cuh) in its place, with the same members.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/guard.cuh"
#include "kernels/cuda/skinny/skinny_tile.cuh"

namespace tandem::cuda {

class StartedSkinny {
 public:
  using Launch = SkinnyParams;
  // Of one thread.
  template <class Probe>
  using Waiter = WordWaiter<Probe, SkinnyParams>;

  const SkinnyParams& params;

  __device__ __forceinline__ explicit StartedSkinny(const SkinnyParams& launch) : params(launch) {}

  // The first thing in the kernel, by all threads; true in one of them: the launch has been cancelled.
  __device__ __forceinline__ bool Begin() const {
    return FoundGuardRaised(params.guard_word, params.guard_value);
  }
  // The last thing, once all threads of the CTA are done.
  __device__ __forceinline__ void End() const {}

  // What the words of this launch hold.
  __device__ __forceinline__ uint64_t value() const { return params.epoch; }
  // The exchange area of `rank` that this launch uses.
  __device__ __forceinline__ std::byte* area(int rank) const { return params.area[rank]; }
  // The map of the peers' shards in the own area.
  __device__ __forceinline__ const CUtensorMap* others() const { return &params.others; }
  __device__ __forceinline__ void PrefetchOthers() const { ptx::PrefetchMap(&params.others); }
  // By unit: this launch's stamp once this rank has pushed it.
  __device__ __forceinline__ uint64_t* pushed() const { return params.pushed; }
  // Of this launch: several groups, which count their epochs each for itself, share the state of a lane.
  __device__ __forceinline__ uint64_t stamp() const {
    return params.epoch * 0x9E3779B97F4A7C15ull ^ reinterpret_cast<uint64_t>(params.area[params.rank]);
  }
  // True once a wait of this CTA has ended without its word: the CTA publishes nothing any more. An engine
  // breaks a group in two steps, which makes what its kernels write harmless.
  __device__ __forceinline__ bool HasGivenUp() const { return false; }

  template <class Probe>
  __device__ __forceinline__ Waiter<Probe> NewWaiter() const {
    return {params};
  }

  // A lane's part in a warp's watch over words of `from`, a rank.
  template <class Probe>
  struct Watch {
    const SkinnyParams& params;
    uint64_t start, asked;

    __device__ __forceinline__ Watch(const StartedSkinny& meet, int /*from*/)
        : params(meet.params), start(ptx::GlobalTimer()), asked(start) {}
    __device__ __forceinline__ bool HasCome(const uint64_t* word) const {
      return Probe::HasReached(ptx::LoadAcquire(word), params.epoch);
    }
    // Words have come.
    __device__ __forceinline__ void GoOn() { start = ptx::GlobalTimer(); }
    // All lanes, once lane `first`'s word is the first that has not come. True in any lane: the watch ends.
    __device__ __forceinline__ bool GivesUp(int lane, int /*first*/) {
      const uint64_t now = ptx::GlobalTimer();
      bool give_up = false;
      if (lane == 0 && now - asked >= 64'000) {  // the abort word lies in host memory: ask seldom
        asked = now;
        give_up = params.abort_word != nullptr && ptx::LoadAcquire(params.abort_word) != 0;
        if (!give_up && now - start > params.timeout_ns) {
          give_up = true;
          *params.failure = 1;
        }
      }
      return give_up;
    }
  };
};

}  // namespace tandem::cuda
