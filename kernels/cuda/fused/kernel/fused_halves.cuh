// File: fused_halves.cuh
//
// The products of a warpgroup's 64 rows of a tile in two halves of the columns, each with separate sums.
// Between a tile's last product and the next tile's first the tensor cores would idle while a warpgroup
// scales and rounds, since the other warpgroup does so at about the same time. With halves, one half is
// rounded while the other half, or the next tile's first half, is multiplied. A is read twice for it, for
// which shared memory has the bandwidth.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/kernel/fused_traits.cuh"
#include "kernels/cuda/fused/kernel/ptx.cuh"
#include "kernels/cuda/fused/kernel/wgmma.cuh"

namespace tandem::cuda {

// Sums of one warpgroup. Products end in the order of their starts, a group each for WgmmaWait.
template <class T>
class HalvedProducts {
 public:
  static constexpr int kFirstColumns = 128, kSecondColumns = T::kTileN - kFirstColumns;
  static constexpr int kFirstBoxes = kFirstColumns / T::kBoxColumns;
  static_assert(kSecondColumns > 0 && kFirstColumns % T::kBoxColumns == 0);
  float first[kFirstColumns / 2], second[kSecondColumns / 2];

  // `group`: which 64 rows.
  __device__ __forceinline__ HalvedProducts(const FusedShared<T>& shared, int group)
      : a_(ptx::DescriptorAlongK(shared.A(0) + static_cast<uint32_t>(group) * (T::kABytes / 2))),
        b_(T::kAlongN ? ptx::DescriptorAlongN(shared.B(0), T::kBGroupBytes)
                      : ptx::DescriptorAlongK(shared.B(0))) {}

  // Starts a half's products of a stage, which is full. `kBegins`: of a tile's first stage.
  template <bool kBegins>
  __device__ __forceinline__ void StartFirst(int stage) {
    Start<kBegins>(stage, 0, first);
  }
  template <bool kBegins>
  __device__ __forceinline__ void StartSecond(int stage) {
    // 128 columns are two groups of 64 rows, or 128 rows.
    Start<kBegins>(stage, T::kAlongN ? 2 * T::kBGroupBytes : kFirstColumns * 128, second);
  }

 private:
  template <bool kBegins, int kValues>
  __device__ __forceinline__ void Start(int stage, uint32_t b_offset, float (&sums)[kValues]) {
    const uint32_t at = static_cast<uint32_t>(stage) * (T::kStageBytes >> 4);
    uint64_t a = ptx::Advanced(a_, at), b = ptx::Advanced(b_, at + (b_offset >> 4));
    ptx::WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // 32 bytes of K each
      if (kBegins && k == 0) {
        ptx::WgmmaFirst<T::kAlongN>(typename T::A(), typename T::B(), sums, a, b);
      } else {
        ptx::Wgmma<T::kAlongN>(typename T::A(), typename T::B(), sums, a, b);
      }
      a = ptx::Advanced(a, 2);
      b = ptx::Advanced(b, T::kAlongN ? 128 : 2);
    }
    ptx::WgmmaCommit();
  }

  uint64_t a_, b_;  // descriptors of stage 0
};

}  // namespace tandem::cuda
