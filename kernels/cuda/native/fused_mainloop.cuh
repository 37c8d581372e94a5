// File: fused_mainloop.cuh
//
// The products of a warpgroup's 64 rows of a tile, out of the ring of stages into registers.
#pragma once

#include <cstdint>

#include "kernels/cuda/native/fused_traits.cuh"
#include "kernels/cuda/native/ptx.cuh"
#include "kernels/cuda/native/wgmma.cuh"

namespace tandem::cuda {

// What follows the last product's start: nothing.
struct NothingBeside {
  __device__ void operator()() const {}
};

// d = A·B over all of K, summed in the tensor cores. `group`: which 64 rows. `release(stage)`: the warpgroup
// has read it. `beside()` is called while the last products run.
template <class T, class Release, class Beside = NothingBeside>
__device__ __forceinline__ void FastMainloop(const FusedShared<T>& shared, int group, int k_blocks,
                                             RingPlace<T::kStages>& place, float (&d)[T::kTileN / 2],
                                             const Release& release, const Beside& beside = {}) {
  int last = 0;
  auto multiply = [&](int block) __attribute__((always_inline)) {
    int stage = place.stage;
    ptx::Wait(shared.Full(stage), place.phase);
    uint64_t a = ptx::DescriptorAlongK(shared.A(stage) + static_cast<uint32_t>(group) * (T::kABytes / 2));
    uint64_t b = T::kAlongN ? ptx::DescriptorAlongN(shared.B(stage), T::kBGroupBytes)
                            : ptx::DescriptorAlongK(shared.B(stage));
    ptx::WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // 32 bytes of K each
      ptx::Wgmma<T::kAlongN>(typename T::A(), typename T::B(), d, a + 2 * k, b + (T::kAlongN ? 128 : 2) * k,
                             block + k);
    }
    ptx::WgmmaCommit();
    ptx::WgmmaWait<1>();
    if (block > 0) release(last);
    last = stage;
    place.Next();
  };
#pragma unroll 1
  for (int block = 0; block < k_blocks; ++block) multiply(block);
  beside();
  ptx::WgmmaWait<0>();
  release(last);
}

}  // namespace tandem::cuda
