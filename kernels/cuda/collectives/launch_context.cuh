// File: launch_context.cuh
//
// How the kernel of a collective knows its launch and its peers. `EngineLaunchContext`: an engine has started
// the launch, and the launch number is a parameter. `ClientLaunchContext`: the launch is placed in the
// client, and the kernel takes its number from counters in device memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/collectives/client_launch.h"
#include "kernels/cuda/device/sync.cuh"

namespace tandem::cuda {

class EngineLaunchContext {
 public:
  __device__ EngineLaunchContext(uint64_t launch_number, const WaitLimits& limits)
      : launch_number_(launch_number), limits_(limits) {}

  // The value of this launch's words and packets.
  __device__ uint64_t value() const { return launch_number_; }
  // The launch's half of memory that has two: 0 or 1. Parameters already name an engine's half.
  __device__ int64_t half() const { return 0; }
  // True once *word holds this launch's value or a later one; false when the wait was ended.
  template <typename TestHooks>
  __device__ bool Await(const uint64_t* word) const {
    return AwaitLaunchNumber<TestHooks>(word, launch_number_, limits_);
  }

  // The slow side of a wait for packets.
  class EngineWaitBudget {
   public:
    __device__ explicit EngineWaitBudget(const EngineLaunchContext& context)
        : wait_budget_(context.limits_, kPollsPerCrowdedLook) {}
    // Called after each poll in vain, with the peer and its packet's number; false: give up.
    __device__ bool Continue(int /*peer*/, uint64_t /*seen*/) { return wait_budget_.Continue(); }

   private:
    WaitBudget wait_budget_;
  };
  using PacketWaitBudget = EngineWaitBudget;

 private:
  const uint64_t launch_number_;
  const WaitLimits& limits_;
};

class ClientLaunchContext {
 public:
  // The verdict page lies in host memory, and every thread of a kernel may be waiting. Reads of one address
  // there go one after another, 0.7 us each. So one thread of all reads, and publishes the result to the
  // others.
  static constexpr int64_t kVerdictIntervalNs = 20'000;

  __device__ explicit ClientLaunchContext(const GroupDeviceState& group_state)
      : group_state_(group_state),
        number_(LoadPrivate(group_state.counters + blockIdx.x) + 1),
        value_(number_ << kLaunchTagBits | group_state.tag) {}
  // For threads that know the block's number.
  __device__ ClientLaunchContext(const GroupDeviceState& group_state, uint64_t number)
      : group_state_(group_state), number_(number), value_(number << kLaunchTagBits | group_state.tag) {}

  __device__ uint64_t number() const { return number_; }
  __device__ uint64_t value() const { return value_; }
  __device__ int64_t half() const { return static_cast<int64_t>(number_ & 1); }
  // True if a launch of the group has failed: this one must do nothing. Threads of a block may differ.
  __device__ bool HasFailed() const { return HasFailed(group_state_); }
  __device__ static bool HasFailed(const GroupDeviceState& group_state) {
    return LoadPrivate(group_state.failed) != 0;
  }
  // Launch number, for kernels after the counting kernel.
  __device__ static uint64_t Counted(const GroupDeviceState& group_state) {
    return LoadPrivate(group_state.counters);
  }

  template <typename TestHooks>
  __device__ bool Await(const uint64_t* word) const {
    ClientWaitBudget wait_budget(*this);
    while (true) {
      const uint64_t seen = LoadAcquire(word);
      if (HasArrived<TestHooks>(seen)) return Accepts(seen, PeerOf(word));
      if (!wait_budget.Continue(PeerOf(word), seen)) return false;
    }
  }
  // Whether a word that holds `seen` is of this launch or a later one.
  template <typename TestHooks>
  __device__ bool HasArrived(uint64_t seen) const {
    return Ahead(seen) >= 0 || TestHooks::HasReached(value_, seen);
  }
  // Judges such a word of rank `peer`: false if the peer runs another launch, which ends this one.
  __device__ bool Accepts(uint64_t seen, int peer) const {
    const int64_t ahead = Ahead(seen);
    if (ahead < kOneLaunch ? TagFits(seen) : ahead < 2 * kOneLaunch) return true;
    return Abort(ahead < kOneLaunch ? AbortReason::kMismatch : AbortReason::kDesync, peer, seen);
  }

  // Now and then in a wait, by one thread: false ends it. `seen`: what rank `peer` has written last;
  // *start_ns: when the wait began, 0 until the first look.
  __device__ bool PollFailures(uint64_t* start_ns, int peer, uint64_t seen) const {
    if (LoadPrivate(group_state_.failed) != 0) return false;
    // Await compares words at once. A packet is compared here, since only its full value ends a wait.
    const int64_t ahead = Ahead(seen);
    if (ahead >= 0)
      return Abort(ahead < kOneLaunch ? AbortReason::kMismatch : AbortReason::kDesync, peer, seen);
    const uint64_t now = GlobalTimerNs();
    if (TakesVerdict(now)) {
      const uint64_t from = LoadRelaxed(group_state_.first_aborted_launch);
      if (from != 0 && from <= number_) return Abort(AbortReason::kCutOff, peer, seen);
    }
    if (group_state_.timeout_ns == 0) return true;
    if (*start_ns == 0) *start_ns = now;
    return now - *start_ns < group_state_.timeout_ns || Abort(AbortReason::kLate, peer, seen);
  }

  // The rank that writes a word of this rank's.
  __device__ int PeerOf(const uint64_t* word) const {
    return static_cast<int>((word - group_state_.own_words) / group_state_.words_per_peer);
  }

  class ClientWaitBudget {
   public:
    __device__ explicit ClientWaitBudget(const ClientLaunchContext& context) : context_(context) {}
    __device__ bool Continue(int peer, uint64_t seen) {
      if (++polls_ % kPollsPerLook != 0) return true;
      return context_.PollFailures(&start_ns_, peer, seen);
    }

   private:
    const ClientLaunchContext& context_;
    uint32_t polls_ = 0;
    uint64_t start_ns_ = 0;
  };
  using PacketWaitBudget = ClientWaitBudget;

  // By all threads of a block that has not given up, once none of them reads the block's counter any more.
  // Many threads store: one thread's 256 stores would take microseconds.
  __device__ void ReportProgress() const {
    for (uint32_t b = blockIdx.x + threadIdx.x * gridDim.x; b < kLaunchCounters; b += gridDim.x * blockDim.x)
      group_state_.counters[b] = number_;
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
    const uint64_t last = LoadPrivate(group_state_.looked);
    if (static_cast<int64_t>(now - last) < kVerdictIntervalNs) return false;
    return atomicCAS(reinterpret_cast<unsigned long long*>(group_state_.looked), last, now) == last;
  }
  // How far a word is ahead of this launch with tag 0.
  __device__ int64_t Ahead(uint64_t seen) const {
    return static_cast<int64_t>(seen - (number_ << kLaunchTagBits));
  }
  __device__ bool TagFits(uint64_t seen) const { return (seen & (kOneLaunch - 1)) == group_state_.tag; }
  // Returns false. The first thread of all reports it to the host.
  __device__ bool Abort(AbortReason why, int peer, uint64_t seen) const {
    auto* failed = reinterpret_cast<unsigned long long*>(group_state_.failed);
    if (atomicCAS(failed, 0ull, 1ull) != 0) return false;
    StoreRelaxed(&group_state_.report->number, number_);
    StoreRelaxed(&group_state_.report->peer, static_cast<uint64_t>(peer));
    StoreRelaxed(&group_state_.report->seen, seen);
    StoreRelaxed(&group_state_.report->plan, group_state_.plan);
    StoreRelease(&group_state_.report->kind, static_cast<uint64_t>(why));
    return false;
  }

  const GroupDeviceState& group_state_;
  const uint64_t number_;
  const uint64_t value_;
};

}  // namespace tandem::cuda
