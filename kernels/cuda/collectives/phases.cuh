// File: phases.cuh
//
// The kernel of phases: moves and sums 16 bytes a thread at a time. Pushes go to peers' memory by plain
// stores; each block then releases one word a peer, and the same block of the peer acquires it, so that no
// grid ever synchronises. One-shot, two-shot and hybrid cube mesh all-reduce (PyTorch's symmetric memory,
// vLLM's custom all-reduce), all-gather, reduce-scatter, all-to-all and the rooted collectives are lists of
// phases.
#pragma once

#include <type_traits>

#include "kernels/cuda/collectives/launch_context.cuh"
#include "kernels/cuda/device/dependent.cuh"
#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/sync.cuh"
#include "kernels/reduction.h"

namespace tandem::cuda {

// Elements as accumulators: floats in fp32, integers modulo their width as in NCCL. Signed integers have an
// order, which sums do not need.
template <typename Element>
struct Accumulation {
  using Sum = float;
  __device__ static Sum Load(Element value) { return ToFloat(value); }
  __device__ static Sum Add(Sum a, Sum b) { return __fadd_rn(a, b); }
  __device__ static void Store(Sum sum, float scale, Element* out) { FromFloat(__fmul_rn(sum, scale), out); }
};
template <typename Integer>
struct IntegerAccumulation {
  using Sum = Integer;
  __device__ static Sum Load(Integer value) { return value; }
  __device__ static Sum Add(Sum a, Sum b) { return static_cast<Sum>(a + b); }
  __device__ static void Store(Sum sum, float, Integer* out) { *out = sum; }
};
template <>
struct Accumulation<uint8_t> : IntegerAccumulation<uint8_t> {};
template <>
struct Accumulation<uint32_t> : IntegerAccumulation<uint32_t> {};
template <>
struct Accumulation<uint64_t> : IntegerAccumulation<uint64_t> {};
template <>
struct Accumulation<int32_t> : IntegerAccumulation<int32_t> {};
template <>
struct Accumulation<int64_t> : IntegerAccumulation<int64_t> {};

// An element's bits, which move whole.
template <size_t kBytes>
struct BitsOf;
template <>
struct BitsOf<1> {
  using Type = uint8_t;
};
template <>
struct BitsOf<2> {
  using Type = uint16_t;
};
template <>
struct BitsOf<4> {
  using Type = uint32_t;
};
template <>
struct BitsOf<8> {
  using Type = uint64_t;
};

template <typename Element>
union Word16 {
  static constexpr int kCount = 16 / sizeof(Element);
  uint4 word;
  Element element[kCount];
  __device__ Word16() {}
};

// One item, and the part of it that this block works on. kSums: the reduction is a sum.
template <typename Element, int kMax, bool kSums>
class ItemRunner {
 public:
  static constexpr int kPerWord = 16 / sizeof(Element);
  static constexpr int kCopyUnroll = 4;
  static constexpr int kSumUnroll = kMax <= 4 ? 2 : 1;

  // `pointer`: PhasesLaunch::pointer, of this launch's half.
  __device__ ItemRunner(const PhasesLaunch& launch, void* const* pointer, const PhaseItem& item)
      : item_(item),
        pointer_(pointer + item.first_pointer),
        pitch_(launch.pitch + item.first_pointer),
        reduce_op_(static_cast<ReduceOp>(launch.reduce_op)) {}

  __device__ void Run(int block, int blocks) const {
    int64_t words = (item_.count + kPerWord - 1) / kPerWord;
    int64_t begin = words * block / blocks, end = words * (block + 1) / blocks;
    int64_t first = begin * kPerWord, last = min(end * kPerWord, item_.count);
    if (item_.vector) {
      int64_t whole = min(end, item_.count / kPerWord);
      bool copies = item_.sources == 1 && item_.scale == 1.0f;
      if (item_.inner == item_.count) {
        copies ? CopyWords<false>(begin, whole) : SumWords<false>(begin, whole);
      } else {
        copies ? CopyWords<true>(begin, whole) : SumWords<true>(begin, whole);
      }
      first = max(first, whole * kPerWord);
    }
    for (int64_t i = first + threadIdx.x; i < last; i += kCollectiveThreads) One(i);
  }

 private:
  using Accumulator = Accumulation<Element>;

  template <typename Number>
  __device__ Number Add(Number a, Number b) const {
    if constexpr (kSums) {
      return Accumulator::Add(a, b);
    } else {
      return Combine(reduce_op_, a, b);
    }
  }

  // The offset of word `index` of operand `operand`, in words.
  template <bool kPitched>
  __device__ int64_t WordAt(int operand, int64_t index) const {
    if constexpr (!kPitched) return index;
    int64_t inner = item_.inner / kPerWord;
    int64_t run = index / inner;
    return run * (pitch_[operand] / kPerWord) + (index - run * inner);
  }
  template <bool kPitched>
  __device__ uint4 LoadWord(int operand, int64_t index) const {
    // Past the first-level cache: peers write these bytes.
    return __ldcg(static_cast<const uint4*>(pointer_[operand]) + WordAt<kPitched>(operand, index));
  }
  template <bool kPitched>
  __device__ void StoreWord(int64_t index, uint4 word) const {
    for (int d = item_.sources; d < item_.sources + item_.destinations; ++d) {
      static_cast<uint4*>(pointer_[d])[WordAt<kPitched>(d, index)] = word;
    }
  }

  template <bool kPitched>
  __device__ void CopyWords(int64_t begin, int64_t end) const {
    for (int64_t i = begin + threadIdx.x; i < end; i += kCopyUnroll * kCollectiveThreads) {
      uint4 words[kCopyUnroll];
#pragma unroll
      for (int u = 0; u < kCopyUnroll; ++u) {
        int64_t at = i + u * kCollectiveThreads;
        if (at < end) words[u] = LoadWord<kPitched>(0, at);
      }
      for (int d = item_.sources; d < item_.sources + item_.destinations; ++d) {
#pragma unroll
        for (int u = 0; u < kCopyUnroll; ++u) {
          int64_t at = i + u * kCollectiveThreads;
          if (at < end) static_cast<uint4*>(pointer_[d])[WordAt<kPitched>(d, at)] = words[u];
        }
      }
    }
  }

  __device__ uint4 Sum(const Word16<Element> (&loaded)[kMax]) const {
    Word16<Element> out;
#pragma unroll
    for (int e = 0; e < kPerWord; ++e) {
      auto sum = Accumulator::Load(loaded[0].element[e]);
#pragma unroll
      for (int s = 1; s < kMax; ++s) {
        if (s < item_.sources) sum = Add(sum, Accumulator::Load(loaded[s].element[e]));
      }
      Accumulator::Store(sum, item_.scale, &out.element[e]);
    }
    return out.word;
  }

  template <bool kPitched>
  __device__ void SumWords(int64_t begin, int64_t end) const {
    for (int64_t i = begin + threadIdx.x; i < end; i += kSumUnroll * kCollectiveThreads) {
      Word16<Element> loaded[kSumUnroll][kMax];
#pragma unroll
      for (int u = 0; u < kSumUnroll; ++u) {
        int64_t at = i + u * kCollectiveThreads;
#pragma unroll
        for (int s = 0; s < kMax; ++s) {
          if (s < item_.sources && at < end) loaded[u][s].word = LoadWord<kPitched>(s, at);
        }
      }
#pragma unroll
      for (int u = 0; u < kSumUnroll; ++u) {
        int64_t at = i + u * kCollectiveThreads;
        if (at < end) StoreWord<kPitched>(at, Sum(loaded[u]));
      }
    }
  }

  // One element, for tails and for addresses that are no multiples of 16.
  __device__ void One(int64_t index) const {
    int64_t run = item_.inner == item_.count ? 0 : index / item_.inner;
    int64_t in_run = index - run * item_.inner;
    auto at = [&](int operand) { return run * pitch_[operand] + in_run; };
    auto load = [&](int s) { return static_cast<const volatile Bits*>(pointer_[s])[at(s)]; };
    Bits bits = load(0);
    if (item_.sources > 1 || item_.scale != 1.0f) {
      auto sum = Accumulator::Load(FromBits(bits));
      for (int s = 1; s < item_.sources; ++s) sum = Add(sum, Accumulator::Load(FromBits(load(s))));
      Element out;
      Accumulator::Store(sum, item_.scale, &out);
      memcpy(&bits, &out, sizeof(bits));
    }
    for (int d = item_.sources; d < item_.sources + item_.destinations; ++d) {
      static_cast<volatile Bits*>(pointer_[d])[at(d)] = bits;
    }
  }
  using Bits = typename BitsOf<sizeof(Element)>::Type;
  __device__ static Element FromBits(Bits bits) {
    Element element;
    memcpy(&element, &bits, sizeof(bits));
    return element;
  }

  const PhaseItem& item_;
  void* const* pointer_;
  const int64_t* pitch_;
  const ReduceOp reduce_op_;
};

// kMax: at least as many as an item has sources.
// Returns false in all threads of a block that has given up: it has published nothing since.
template <typename Element, int kMax, bool kSums, typename TestHooks, typename LaunchContext>
__device__ __forceinline__ bool WorkPhases(const PhasesLaunch& launch, const LaunchContext& context,
                                           void* const* pointer) {
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int64_t shift = int64_t{block} * launch.word_stride;
  const uint64_t value = context.value();
  int last_wait = 0;
  for (int p = 0; p < launch.phases; ++p) {
    if (launch.phase[p].waits > 0) last_wait = p;
  }
  for (int p = 0; p < launch.phases; ++p) {
    const Phase& phase = launch.phase[p];
    if (phase.waits > 0) {
      const bool ended = thread < phase.waits &&
                         !context.template Await<TestHooks>(launch.word[phase.first_wait + thread] + shift);
      // A block that ends by abort or time-out publishes nothing more.
      if (__syncthreads_or(ended)) return false;
      // The same block of every peer that this one waits for has begun.
      if (p == last_wait) TriggerDependents();
    }
    auto signal = [&] {
      if (phase.signals == 0) return;
      __syncthreads();
      if (thread < phase.signals) {
        TestHooks::BeforeSignal(value, phase.first_signal + thread);
        StoreRelease(launch.word[phase.first_signal + thread] + shift, value);
      }
    };
    if constexpr (TestHooks::kFlagBeforeData) {
      signal();
      __syncthreads();
      TestHooks::AfterEarlySignal(value);
    }
    for (int i = 0; i < phase.items; ++i) {
      ItemRunner<Element, kMax, kSums>(launch, pointer, launch.item[phase.first_item + i])
          .Run(block, launch.blocks);
    }
    if constexpr (!TestHooks::kFlagBeforeData) signal();
  }
  return true;
}

template <typename Element, int kMax, bool kSums, typename TestHooks>
__global__ void __launch_bounds__(kCollectiveThreads) RunPhases(const __grid_constant__ PhasesLaunch launch) {
  // All threads of a block alike, should the guard be raised just now.
  if (launch.guard.word != nullptr && __syncthreads_or(IsCancelled(launch.guard))) return;
  WorkPhases<Element, kMax, kSums, TestHooks>(
      launch, EngineLaunchContext(launch.launch_number, launch.limits), launch.pointer);
}

template <typename Element, int kMax, bool kSums, typename TestHooks>
__global__ void __launch_bounds__(kCollectiveThreads)
    RunClientPhases(const __grid_constant__ ClientPhasesLaunch launch) {
  __shared__ void* pointer[kMaxPointers];
  WaitForPrimary();
  const ClientLaunchContext context(launch.group_state);
  const int64_t shift = context.half() * launch.half_bytes;
  for (uint32_t i = threadIdx.x; i < kMaxPointers; i += kCollectiveThreads) {
    const bool halved = launch.halved[i / 32] >> (i % 32) & 1;
    pointer[i] = static_cast<char*>(launch.phases.pointer[i]) + (halved ? shift : 0);
  }
  if (__syncthreads_or(context.HasFailed())) return;
  if (!WorkPhases<Element, kMax, kSums, TestHooks>(launch.phases, context, pointer)) return;
  TriggerDependents();
  context.ReportProgress();
}

// The kernel of sums for a launch's type and number of sources. `Launch`: PhasesLaunch or ClientPhasesLaunch.
template <typename TestHooks, typename Launch = PhasesLaunch>
struct PhaseKernels {
  using Kernel = void (*)(const Launch);
  template <typename Element, int kMax>
  static Kernel OfLaunch() {
    if constexpr (std::is_same_v<Launch, ClientPhasesLaunch>) {
      return &RunClientPhases<Element, kMax, true, TestHooks>;
    } else {
      return &RunPhases<Element, kMax, true, TestHooks>;
    }
  }
  template <typename Element>
  static Kernel OfElement(int most) {
    return most <= 4 ? OfLaunch<Element, 4>() : OfLaunch<Element, 8>();
  }
  // `most` sources of `type`; moves are bytes whatever their type.
  static Kernel Of(DType type, bool sums, int most) {
    if (!sums) return OfLaunch<uint8_t, 4>();
    switch (type) {
      case DType::kF32: return OfElement<float>(most);
      case DType::kF16: return OfElement<__half>(most);
      case DType::kBf16: return OfElement<__nv_bfloat16>(most);
      case DType::kF8E4M3: return OfElement<__nv_fp8_e4m3>(most);
      case DType::kF8E5M2: return OfElement<__nv_fp8_e5m2>(most);
      default: break;
    }
    switch (DTypeBytes(type)) {
      case 1: return OfElement<uint8_t>(most);
      case 4: return OfElement<uint32_t>(most);
      default: return OfElement<uint64_t>(most);
    }
  }
};

inline int MostSources(const PhasesLaunch& launch) {
  int most = 1;
  for (const PhaseItem& item : launch.item) most = item.sources > most ? item.sources : most;
  return most;
}

}  // namespace tandem::cuda
