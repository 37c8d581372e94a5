// File: fused_exact_mainloop.cuh
//
// Products of fp8 summed in fp32. Tensor cores of Hopper keep about 14 bits of a sum of fp8 products while
// they add to it (DeepSeek-V3 Technical Report, 3.3.2). Summed there over all of K, as cuBLASLt's fast
// accumulation does, results lose some 1e-3. Here each stage's sums, of 128 of K, are taken out of the tensor
// cores and added in fp32: the promotion of CUTLASS's and DeepGEMM's kernels.
//
// A warpgroup adds one part of the tile's columns while the next one is multiplied, where registers hold two
// parts' sums beside the tile's; else the tensor cores work for the other warpgroup meanwhile. Nothing orders
// the two: turns by barriers were slower.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/kernel/fused_traits.cuh"
#include "kernels/cuda/fused/kernel/ptx.cuh"
#include "kernels/cuda/fused/kernel/wgmma.cuh"

namespace tandem::cuda {

// How ExactMainloop adds: as the sums are.
template <class T>
struct PlainSums {
  static constexpr int kSlots = 1;
  static constexpr int kValues = T::kPartColumns / 2;
  __device__ __forceinline__ void Read(int) const {}
  __device__ __forceinline__ void Add(int part, const float (&sum)[kValues], float (&d)[T::kTileN / 2],
                                      int) const {
#pragma unroll
    for (int i = 0; i < kValues; ++i) d[part * kValues + i] += sum[i];
  }
};

// d = A·B over all of K. `group`: which 64 rows. `release(stage)`: the warpgroup has read it. Stages take
// `adder`'s slots in turn: Read(slot) asks for what Add(part, sum, d, slot) needs of the next stage that has
// not been asked for.
template <class T, class Release, class Adder>
__device__ __forceinline__ void ExactMainloop(const FusedShared<T>& shared, int group, int k_blocks,
                                              RingPlace<T::kStages>& place, float (&d)[T::kTileN / 2],
                                              const Release& release, Adder adder) {
  using Sums = float[T::kPartColumns / 2];
  const auto begin = [&](int stage, int part, Sums& sum) __attribute__((always_inline)) {
    const uint64_t a =
        ptx::DescriptorAlongK(shared.A(stage) + static_cast<uint32_t>(group) * (T::kABytes / 2));
    const uint64_t b = ptx::DescriptorAlongK(shared.B(stage) + static_cast<uint32_t>(part) * T::kBPartBytes);
    ptx::WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k == 0) {
        ptx::WgmmaFirst<false>(typename T::A(), typename T::B(), sum, a, b);
      } else {
        ptx::Wgmma<false>(typename T::A(), typename T::B(), sum, a + 2 * k, b + 2 * k);
      }
    }
    ptx::WgmmaCommit();
  };
  const auto multiply = [&](int slot) __attribute__((always_inline)) {
    const int stage = place.stage;
    ptx::Wait(shared.Full(stage), place.phase);
    if constexpr (T::kPartsAtOnce) {
      static_assert(T::kParts == 2);
      Sums sum[2];
      begin(stage, 0, sum[0]);
      begin(stage, 1, sum[1]);
      ptx::WgmmaWait<1>();
      ptx::WgmmaSettled(sum[0]);
      adder.Add(0, sum[0], d, slot);
      ptx::WgmmaWait<0>();
      ptx::WgmmaSettled(sum[1]);
      release(stage);
      adder.Add(1, sum[1], d, slot);
    } else {
#pragma unroll
      for (int part = 0; part < T::kParts; ++part) {
        Sums sum;  // not alive from part to part
        begin(stage, part, sum);
        ptx::WgmmaWait<0>();
        ptx::WgmmaSettled(sum);
        if (part == T::kParts - 1) release(stage);
        adder.Add(part, sum, d, slot);
      }
    }
    adder.Read(slot);
    place.Next();
  };

#pragma unroll
  for (int i = 0; i < T::kTileN / 2; ++i) d[i] = 0.0f;
#pragma unroll
  for (int slot = 0; slot < Adder::kSlots; ++slot) adder.Read(slot);
  int block = 0;
#pragma unroll 1
  for (; block + Adder::kSlots <= k_blocks; block += Adder::kSlots) {
#pragma unroll
    for (int slot = 0; slot < Adder::kSlots; ++slot) multiply(slot);
  }
  if (Adder::kSlots == 2 && block < k_blocks) multiply(0);
}

}  // namespace tandem::cuda
