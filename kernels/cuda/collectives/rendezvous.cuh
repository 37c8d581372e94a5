// File: rendezvous.cuh
//
// How the kernel of a collective knows its launch and its peers. `StartedRendezvous`: an engine has started
// the launch, and the epoch is a parameter. `ClientRendezvous`: the launch is placed in the client, and the
// kernel takes its number from counters in device memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/collectives/client_launch.h"
#include "kernels/cuda/device/sync.cuh"

namespace tandem::cuda {

class StartedRendezvous {
 public:
  __device__ StartedRendezvous(uint64_t epoch, const WaitLimits& limits) : epoch_(epoch), limits_(limits) {}

  // The value of this launch's words and packets.
  __device__ uint64_t value() const { return epoch_; }
  // The launch's half of memory that has two: 0 or 1. Parameters already name an engine's half.
  __device__ int64_t half() const { return 0; }
  // True once *word holds this launch's value or a later one; false when the wait was ended.
  template <typename Probe>
  __device__ bool Await(const uint64_t* word) const {
    return AwaitEpoch<Probe>(word, epoch_, limits_);
  }

  // The slow side of a wait for packets.
  class StartedPatience {
   public:
    __device__ explicit StartedPatience(const StartedRendezvous& rendezvous)
        : patience_(rendezvous.limits_, kPollsPerCrowdedLook) {}
    // Called after each poll in vain, with the peer and its packet's number; false: give up.
    __device__ bool Continue(int /*peer*/, uint64_t /*seen*/) { return patience_.Continue(); }

   private:
    Patience patience_;
  };
  using PacketPatience = StartedPatience;

 private:
  const uint64_t epoch_;
  const WaitLimits& limits_;
};

class ClientRendezvous {
 public:
  // The verdict page lies in host memory, and every thread of a kernel may be waiting. Reads of one address
  // there go one after another, 0.7 us each. So one thread of all reads, and publishes the result to the
  // others.
  static constexpr int64_t kVerdictIntervalNs = 20'000;

  __device__ explicit ClientRendezvous(const LaunchFrame& frame)
      : frame_(frame),
        number_(LoadPrivate(frame.counters + blockIdx.x) + 1),
        value_(number_ << kLaunchTagBits | frame.tag) {}
  // For threads that know the block's number.
  __device__ ClientRendezvous(const LaunchFrame& frame, uint64_t number)
      : frame_(frame), number_(number), value_(number << kLaunchTagBits | frame.tag) {}

  __device__ uint64_t number() const { return number_; }
  __device__ uint64_t value() const { return value_; }
  __device__ int64_t half() const { return static_cast<int64_t>(number_ & 1); }
  // True if a launch of the group has failed: this one must do nothing. Threads of a block may differ.
  __device__ bool HasFailed() const { return HasFailed(frame_); }
  __device__ static bool HasFailed(const LaunchFrame& frame) { return LoadPrivate(frame.failed) != 0; }
  // Launch number, for kernels after the counting kernel.
  __device__ static uint64_t Counted(const LaunchFrame& frame) { return LoadPrivate(frame.counters); }

  template <typename Probe>
  __device__ bool Await(const uint64_t* word) const {
    ClientPatience patience(*this);
    while (true) {
      const uint64_t seen = LoadAcquire(word);
      if (HasCome<Probe>(seen)) return Accepts(seen, PeerOf(word));
      if (!patience.Continue(PeerOf(word), seen)) return false;
    }
  }
  // Whether a word that holds `seen` is of this launch or a later one.
  template <typename Probe>
  __device__ bool HasCome(uint64_t seen) const {
    return Ahead(seen) >= 0 || Probe::HasReached(value_, seen);
  }
  // Judges such a word of rank `peer`: false if the peer runs another launch, which ends this one.
  __device__ bool Accepts(uint64_t seen, int peer) const {
    const int64_t ahead = Ahead(seen);
    if (ahead < kOneLaunch ? TagFits(seen) : ahead < 2 * kOneLaunch) return true;
    return GiveUp(ahead < kOneLaunch ? GaveUp::kMismatch : GaveUp::kDesync, peer, seen);
  }

  // Now and then in a wait, by one thread: false ends it. `seen`: what rank `peer` has written last;
  // *start_ns: when the wait began, 0 until the first look.
  __device__ bool Look(uint64_t* start_ns, int peer, uint64_t seen) const {
    if (LoadPrivate(frame_.failed) != 0) return false;
    // Await compares words at once. A packet is compared here, since only its full value ends a wait.
    const int64_t ahead = Ahead(seen);
    if (ahead >= 0) return GiveUp(ahead < kOneLaunch ? GaveUp::kMismatch : GaveUp::kDesync, peer, seen);
    const uint64_t now = GlobalTimerNs();
    if (TakesVerdict(now)) {
      const uint64_t from = LoadRelaxed(frame_.abort_from);
      if (from != 0 && from <= number_) return GiveUp(GaveUp::kCutOff, peer, seen);
    }
    if (frame_.timeout_ns == 0) return true;
    if (*start_ns == 0) *start_ns = now;
    return now - *start_ns < frame_.timeout_ns || GiveUp(GaveUp::kLate, peer, seen);
  }

  // The rank that writes a word of this rank's.
  __device__ int PeerOf(const uint64_t* word) const {
    return static_cast<int>((word - frame_.own_words) / frame_.words_per_peer);
  }

  class ClientPatience {
   public:
    __device__ explicit ClientPatience(const ClientRendezvous& rendezvous) : rendezvous_(rendezvous) {}
    __device__ bool Continue(int peer, uint64_t seen) {
      if (++polls_ % kPollsPerLook != 0) return true;
      return rendezvous_.Look(&start_ns_, peer, seen);
    }

   private:
    const ClientRendezvous& rendezvous_;
    uint32_t polls_ = 0;
    uint64_t start_ns_ = 0;
  };
  using PacketPatience = ClientPatience;

  // By all threads of a block that has not given up, once none of them reads the block's counter any more.
  // Many threads store: one thread's 256 stores would take microseconds.
  __device__ void Count() const {
    for (uint32_t b = blockIdx.x + threadIdx.x * gridDim.x; b < kLaunchCounters; b += gridDim.x * blockDim.x)
      frame_.counters[b] = number_;
  }

 private:
  static constexpr int64_t kOneLaunch = int64_t{1} << kLaunchTagBits;

  // Past the first-level cache: another kernel, or another block, has written it.
  __device__ static uint64_t LoadPrivate(const uint64_t* word) {
    uint64_t value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
  }
  // Whether this thread is the one that looks at the verdict now. One lane of those that run together asks:
  // thousands of exchanges would take as long.
  __device__ bool TakesVerdict(uint64_t now) const {
    if (threadIdx.x % 32 != static_cast<unsigned>(__ffs(static_cast<int>(__activemask()))) - 1) return false;
    const uint64_t last = LoadPrivate(frame_.looked);
    if (static_cast<int64_t>(now - last) < kVerdictIntervalNs) return false;
    return atomicCAS(reinterpret_cast<unsigned long long*>(frame_.looked), last, now) == last;
  }
  // How far a word is ahead of this launch with tag 0.
  __device__ int64_t Ahead(uint64_t seen) const {
    return static_cast<int64_t>(seen - (number_ << kLaunchTagBits));
  }
  __device__ bool TagFits(uint64_t seen) const { return (seen & (kOneLaunch - 1)) == frame_.tag; }
  // Returns false. The first thread of all reports it to the host.
  __device__ bool GiveUp(GaveUp why, int peer, uint64_t seen) const {
    auto* failed = reinterpret_cast<unsigned long long*>(frame_.failed);
    if (atomicCAS(failed, 0ull, 1ull) != 0) return false;
    StoreRelaxed(&frame_.report->number, number_);
    StoreRelaxed(&frame_.report->peer, static_cast<uint64_t>(peer));
    StoreRelaxed(&frame_.report->seen, seen);
    StoreRelaxed(&frame_.report->plan, frame_.plan);
    StoreRelease(&frame_.report->kind, static_cast<uint64_t>(why));
    return false;
  }

  const LaunchFrame& frame_;
  const uint64_t number_;
  const uint64_t value_;
};

}  // namespace tandem::cuda
