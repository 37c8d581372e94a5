// File: placed_skinny.cuh
//
// The skinny kernel's side of client placement: the launch's number comes from the CTA's counter. It lies in
// shared memory, where the few threads that ask for it read it: registers are what the kernel is short of.
//
// Two CTAs of a cluster feed each other, so neither may end early. A CTA that finds the group failed runs as
// one that has given up.
#pragma once

#include <cstdint>

#include "kernels/cuda/collectives/meeting.cuh"
#include "kernels/cuda/skinny/placed_skinny.h"
#include "kernels/cuda/skinny/skinny_meeting.cuh"
#include "kernels/cuda/skinny/skinny_variant.cuh"

namespace tandem::cuda {

class PlacedSkinny {
 public:
  using Launch = PlacedSkinnyLaunch;

  const SkinnyParams& params;

  __device__ __forceinline__ explicit PlacedSkinny(const PlacedSkinnyLaunch& launch)
      : params(launch.params), launch_(launch) {}

  __device__ __forceinline__ bool Begin() const {
    constexpr unsigned kIdleThread = 96;  // its warp has nothing else to do before the threads first meet
    if (threadIdx.x == kIdleThread) {
      const PlacedMeeting meeting(launch_.frame);
      Here().number = meeting.number();
      Here().half_offset = meeting.half() * launch_.half_bytes;
      Here().given_up = meeting.HasFailed() ? 1 : 0;
    }
    return false;
  }
  __device__ __forceinline__ void End() const {
    __syncthreads();  // all threads have waited for what they wait for
    if (!HasGivenUp()) Meeting().Count();
  }

  __device__ __forceinline__ uint64_t value() const {
    return Here().number << kLaunchTagBits | launch_.frame.tag;
  }
  __device__ __forceinline__ std::byte* area(int rank) const {
    return params.area[rank] + Here().half_offset;
  }
  __device__ __forceinline__ const CUtensorMap* others() const {
    return (Here().number & 1) != 0 ? &launch_.odd_others : &params.others;
  }
  __device__ __forceinline__ void PrefetchOthers() const {
    ptx::PrefetchMap(&params.others);
    ptx::PrefetchMap(&launch_.odd_others);
  }
  __device__ __forceinline__ uint64_t* pushed() const { return launch_.frame.pushed; }
  __device__ __forceinline__ uint64_t stamp() const { return Here().number; }
  __device__ __forceinline__ bool HasGivenUp() const {
    return *static_cast<const volatile uint32_t*>(&Here().given_up) != 0;
  }

  // How the collectives' waits ask a probe of the fused kernels.
  template <class Probe>
  struct AskWord {
    __device__ static bool HasReached(uint64_t value, uint64_t seen) {
      return Probe::HasReached(seen, value);
    }
  };

  template <class Probe>
  struct Waiter {
    const PlacedSkinny& meet;
    bool given_up = false;

    __device__ __forceinline__ void Wait(const uint64_t* word) {
      if (given_up) return;
      given_up = meet.HasGivenUp() || !meet.Meeting().template Await<AskWord<Probe>>(word);
      if (given_up) meet.GiveUp();
    }
  };
  template <class Probe>
  __device__ __forceinline__ Waiter<Probe> NewWaiter() const {
    return {*this};
  }

  // See StartedSkinny.
  template <class Probe>
  struct Watch {
    const PlacedSkinny& meet;
    const PlacedMeeting meeting;
    const int from;
    uint64_t seen = 0, start_ns = 0;
    uint32_t polls = 0;
    bool wrong = false;

    __device__ __forceinline__ Watch(const PlacedSkinny& all, int rank)
        : meet(all), meeting(all.Meeting()), from(rank) {}
    __device__ __forceinline__ bool HasCome(const uint64_t* word) {
      seen = LoadAcquire(word);
      if (!meeting.template HasCome<AskWord<Probe>>(seen)) return false;
      if (!meeting.Accepts(seen, from)) wrong = true;
      return !wrong;
    }
    __device__ __forceinline__ void GoOn() { start_ns = 0; }
    __device__ __forceinline__ bool GivesUp(int lane, int first) {
      bool ends = wrong || meet.HasGivenUp();
      if (++polls % kPollsPerLook == 0) {
        if (start_ns == 0) start_ns = GlobalTimerNs();  // of all lanes: `first` may be another one next time
        if (lane == first && !meeting.Look(polls / kPollsPerLook, &start_ns, from, seen)) ends = true;
      }
      if (ends) meet.GiveUp();
      return ends;
    }
  };

 private:
  // The CTA's launch, in shared memory.
  struct Now {
    uint64_t number;
    int64_t half_offset;
    uint32_t given_up;
  };
  __device__ static __forceinline__ Now& Here() {
    __shared__ Now now;
    return now;
  }
  __device__ __forceinline__ PlacedMeeting Meeting() const { return {launch_.frame, Here().number}; }
  __device__ __forceinline__ void GiveUp() const { *static_cast<volatile uint32_t*>(&Here().given_up) = 1; }

  const PlacedSkinnyLaunch& launch_;
};

}  // namespace tandem::cuda

// As TANDEM_SKINNY_VARIANTS.
#define TANDEM_PLACED_SKINNY_VARIANTS(NAME, ...)                 \
  namespace tandem::cuda {                                       \
  std::span<const SkinnyVariant> PlacedSkinnyVariants_##NAME() { \
    return AllSkinnyVariants<PlacedSkinny, __VA_ARGS__>();       \
  }                                                              \
  }
