// File: fused_mainloop.cuh
//
// The products of a warpgroup's 64 rows of a tile, out of the ring of stages into registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/fused/kernel/fused_traits.cuh"
#include "kernels/cuda/fused/kernel/ptx.cuh"
#include "kernels/cuda/fused/kernel/wgmma.cuh"

namespace tandem::cuda {

// No work follows the last product's start.
struct NothingBeside {
  __device__ void operator()() const {}
};

// d = A·B over all of K, summed in the tensor cores. `group`: which 64 rows. `release(stage)`: the warpgroup
// has read it. `beside()` is called while the last products run.
template <class T, class Release, class Beside = NothingBeside>
__device__ __forceinline__ void FastMainloop(const FusedShared<T>& shared, int group, int k_blocks,
                                             RingPlace<T::kStages>& place, float (&d)[T::kTileN / 2],
                                             const Release& release, const Beside& beside = {}) {
  const uint64_t first_a =
      ptx::DescriptorAlongK(shared.A(0) + static_cast<uint32_t>(group) * (T::kABytes / 2));
  const uint64_t first_b =
      T::kAlongN ? ptx::DescriptorAlongN(shared.B(0), T::kBGroupBytes) : ptx::DescriptorAlongK(shared.B(0));
  const auto start = [&](auto begins) __attribute__((always_inline)) {
    ptx::Wait(shared.Full(place.stage), place.phase);
    const uint32_t units = static_cast<uint32_t>(place.stage) * (T::kStageBytes >> 4);
    uint64_t a = ptx::Advanced(first_a, units), b = ptx::Advanced(first_b, units);
    ptx::WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // 32 bytes of K each
      if (decltype(begins)::value && k == 0) {
        ptx::WgmmaFirst<T::kAlongN>(typename T::A(), typename T::B(), d, a, b);
      } else {
        ptx::Wgmma<T::kAlongN>(typename T::A(), typename T::B(), d, a, b);
      }
      a = ptx::Advanced(a, 2);
      b = ptx::Advanced(b, T::kAlongN ? 128 : 2);
    }
    ptx::WgmmaCommit();
  };
  start(std::true_type());
  int last = place.stage;
  place.Next();
  const auto multiply = [&]() __attribute__((always_inline)) {
    start(std::false_type());
    ptx::WgmmaWait<1>();
    release(last);
    last = place.stage;
    place.Next();
  };
#pragma unroll 1
  for (int block = 1; block < k_blocks; ++block) multiply();
  beside();
  ptx::WgmmaWait<0>();
  release(last);
}

}  // namespace tandem::cuda
