// File: sync.cuh
//
// Words and packets between GPUs: release stores, acquire loads, and waits that always end. Nothing here is
// newer than sm_70. Hooks (tests only) may delay or break the order of things.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/collective.h"

namespace tandem::cuda {

// The hooks of the product: does nothing.
struct NoTestHooks {
  static constexpr bool kFlagBeforeData = false;
  // True when a word or packet that holds `seen` is what launch `launch_number` waits for.
  __device__ static bool HasReached(uint64_t launch_number, uint64_t seen) {
    return static_cast<int64_t>(seen - launch_number) >= 0;
  }
  __device__ static bool IsOf(uint64_t launch_number, uint64_t seen) { return seen == launch_number; }
  __device__ static void BeforeSignal(uint64_t /*launch number*/, int /*word*/) {}
};

// A word above this is the release of a broken group, not a value; ordinary values stay below 2^61.
inline constexpr uint64_t kReleased = uint64_t{1} << 61;
// Polls of the word for each look at the abort word (which may lie in host memory) and the clock. Where all
// threads of a kernel wait they look less often: such reads go one after another, 0.7 us for each warp.
inline constexpr uint32_t kPollsPerLook = 256, kPollsPerCrowdedLook = 4096;

__device__ inline uint64_t LoadAcquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline uint32_t LoadAcquire(const uint32_t* word) {
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline uint64_t LoadRelaxed(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
__device__ inline void StoreRelease(uint64_t* word, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
__device__ inline void StoreRelaxed(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}

// True if the launch has been cancelled: it must do nothing, nor signal anybody.
__device__ inline bool IsCancelled(const DeviceGuard& guard) {
  return guard.word != nullptr && static_cast<int64_t>(LoadRelaxed(guard.word) - guard.value) >= 0;
}

// A packet in one 128-bit access, which the memory model keeps whole.
__device__ inline void StorePacket(Packet* to, uint64_t data, uint64_t launch_number) {
  asm volatile(
      "{ .reg .b128 whole; mov.b128 whole, {%1, %2}; st.relaxed.sys.global.b128 [%0], whole; }" ::"l"(to),
      "l"(data), "l"(launch_number)
      : "memory");
}
__device__ inline Packet LoadPacket(const Packet* from) {
  Packet packet;
  asm volatile("{ .reg .b128 whole; ld.relaxed.sys.global.b128 whole, [%2]; mov.b128 {%0, %1}, whole; }"
               : "=l"(packet.data), "=l"(packet.launch_number)
               : "l"(from)
               : "memory");
  return packet;
}

__device__ inline uint64_t GlobalTimerNs() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

// The slow side of a wait: counts polls, and now and then looks whether the wait must end.
class WaitBudget {
 public:
  __device__ explicit WaitBudget(const WaitLimits& limits, uint32_t polls_per_look = kPollsPerLook)
      : limits_(limits), polls_per_look_(polls_per_look) {}
  // Called after each poll in vain; false: give up.
  __device__ bool Continue() {
    if (++polls_ % polls_per_look_ != 0) return true;
    if (limits_.abort_word != nullptr && LoadRelaxed(limits_.abort_word) != 0) return false;
    if (limits_.timeout_ns == 0) return true;
    uint64_t now = GlobalTimerNs();
    if (start_ns_ == 0) start_ns_ = now;
    if (now - start_ns_ < limits_.timeout_ns) return true;
    if (limits_.trouble != nullptr) StoreRelaxed(limits_.trouble, 1);
    return false;
  }

 private:
  const WaitLimits& limits_;
  const uint32_t polls_per_look_;
  uint32_t polls_ = 0;
  uint64_t start_ns_ = 0;
};

// True when *word has reached `launch_number` by cyclic comparison; false when the wait was ended.
template <typename TestHooks = NoTestHooks>
__device__ bool AwaitLaunchNumber(const uint64_t* word, uint64_t launch_number, const WaitLimits& limits) {
  WaitBudget wait_budget(limits);
  while (true) {
    uint64_t value = LoadAcquire(word);
    if (TestHooks::HasReached(launch_number, value)) return value < kReleased;
    if (!wait_budget.Continue()) return false;
  }
}

}  // namespace tandem::cuda
