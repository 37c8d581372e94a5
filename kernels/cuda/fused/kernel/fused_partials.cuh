// File: fused_partials.cuh
//
// The sums of a shared tile (fused_stream_k.h), passed through this GPU's memory from a warpgroup that has
// multiplied earlier stages to the warpgroup that finishes the tile. They lie box by box, both warpgroups'
// parts of one side by side, as threads hold them: each reads what the same thread of the other CTA wrote.
// They come through the ring of stages behind the tile's last product, so that nobody waits for memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/fused_matmul.h"
#include "kernels/cuda/fused/kernel/fused_traits.cuh"
#include "kernels/cuda/fused/kernel/ptx.cuh"

namespace tandem::cuda {

// The areas and words of a CTA's partials.
template <class T>
struct PartialPlace {
  static constexpr int kValues = T::kBoxColumns / 2;  // a thread's of a box
  static constexpr uint32_t kHalfBytes = 128 * kValues * sizeof(float), kBytes = 2 * kHalfBytes;
  static_assert(kBytes <= T::kStageBytes);

  const FusedMatmulParams& params;
  int cta;

  // Box `box` of the sums of `segment`.
  __device__ __forceinline__ float* Box(int segment, int box) const {
    return params.partials +
           static_cast<size_t>((segment * T::kCluster + cta) * T::kSubTiles + box) * (kBytes / sizeof(float));
  }
  __device__ __forceinline__ uint32_t* Word(int segment, int group) const {
    return params.partial_words + (segment * T::kCluster + cta) * 2 + group;
  }
};

// One thread of warpgroup `group` of those that compute. All threads of a warpgroup call alike.
template <class T, class TestHooks>
class PartialSums {
 public:
  __device__ __forceinline__ PartialSums(const FusedMatmulParams& params, int group, int cta)
      : place_{params, cta}, group_(group), thread_(threadIdx.x & 127) {}

  // Leaves sums from the thread's value `kFirst` on in the area of `segment`; then Tell.
  template <int kFirst, int kCount>
  __device__ __forceinline__ void Leave(int segment, const float (&sums)[kCount]) const {
    constexpr int kValues = PartialPlace<T>::kValues;
    static_assert(kFirst % kValues == 0 && kCount % kValues == 0);
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      float* box = place_.Box(segment, (kFirst + i) / kValues) +
                   group_ * (PartialPlace<T>::kHalfBytes / sizeof(float));
      __stcg(reinterpret_cast<float4*>(box) + i % kValues / 4 * 128 + thread_,
             make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
    }
  }
  // Some stages later: the fence waits for the stores, and with it the warp for its next products.
  __device__ __forceinline__ void Tell(int segment) const {
    Handshake();
    if (thread_ == 0) {
      TestHooks::BeforeFlag(place_.params.launch_number);
      ptx::StoreReleaseGpu(place_.Word(segment, group_), 1);
    }
    __syncwarp();
  }
  // As a planted fault has it, before the data.
  __device__ __forceinline__ void TellEarly(int segment) const {
    if (thread_ == 0) ptx::StoreReleaseGpu(place_.Word(segment, group_), 1);
    TestHooks::AfterEarlyFlag(place_.params.launch_number);
  }

  // Adds to a box's `own` sums those of `peer_ctas` others, which come through the ring, in the order of K:
  // the own ones are the last.
  template <class Thread>
  __device__ __forceinline__ void Add(const FusedShared<T>& shared, int peer_ctas,
                                      float (&own)[PartialPlace<T>::kValues], Thread& thread) const {
    constexpr int kValues = PartialPlace<T>::kValues;
    float total[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) total[i] = 0.0f;
#pragma unroll 1
    for (int peer_cta = 0; peer_cta < peer_ctas; ++peer_cta) {
      ptx::Wait(shared.Full(thread.place.stage), thread.place.phase);
      const uint32_t from = shared.A(thread.place.stage) +
                            static_cast<uint32_t>(group_) * PartialPlace<T>::kHalfBytes +
                            static_cast<uint32_t>(thread_) * 16;
#pragma unroll
      for (int i = 0; i < kValues; i += 4) {
        const float4 four = ptx::LoadFour(from + static_cast<uint32_t>(i) * 512);
        total[i] += four.x;
        total[i + 1] += four.y;
        total[i + 2] += four.z;
        total[i + 3] += four.w;
      }
      Handshake();
      thread.Release(thread.place.stage);
      thread.place.Next();
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) own[i] = total[i] + own[i];
  }

 private:
  __device__ __forceinline__ void Handshake() const {
    asm volatile("bar.sync %0, 128;" ::"r"(group_ + 1) : "memory");
  }

  PartialPlace<T> place_;
  int group_, thread_;
};

// The thread that feeds the stages of the CTA that finishes a tile: waits for the sums of the tile's other
// parts. They are on their way: their clusters wait for nobody meanwhile but for operands, and for these
// within the launch's bounds. It has one waiter, which leaves the words zero.
template <class T, class TestHooks>
__device__ __forceinline__ void AwaitPartials(const FusedMatmulParams& params, int cta, TilePart part) {
  const PartialPlace<T> place{params, cta};
  for (int segment = part.Segment() - part.PeerCtas(); segment < part.Segment(); ++segment) {
    for (int group = 0; group < 2; ++group) {
      uint32_t* word = place.Word(segment, group);
      while (!TestHooks::HasReached(ptx::LoadAcquireGpu(word), 1)) {
      }
      *word = 0;
    }
  }
  TestHooks::AfterWait(params.launch_number);
  ptx::ProxyFence();
}

// Feeds a box of them, a stage for each of the others.
template <class T>
__device__ __forceinline__ void FeedPartials(const FusedMatmulParams& params, const FusedShared<T>& shared,
                                             int cta, TilePart part, int box, RingPlace<T::kStages>& stages) {
  const PartialPlace<T> place{params, cta};
  for (int segment = part.Segment() - part.PeerCtas(); segment < part.Segment(); ++segment, stages.Next()) {
    ptx::Wait(shared.Empty(stages.stage), stages.phase ^ 1);
    const uint32_t full = shared.Full(stages.stage);
    ptx::ArriveExpect(full, PartialPlace<T>::kBytes);
    ptx::LoadBytes(place.Box(segment, box), shared.A(stages.stage), PartialPlace<T>::kBytes, full);
  }
}

}  // namespace tandem::cuda
