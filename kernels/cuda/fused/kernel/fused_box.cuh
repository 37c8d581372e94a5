// File: fused_box.cuh
//
// How one thread's sums lie in the boxes of shared memory that TMA stores from and loads into.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/fused/kernel/ptx.cuh"

namespace tandem::cuda {

template <class Out>
__device__ __forceinline__ uint32_t Pack(float low, float high) {
  if constexpr (std::is_same_v<Out, __half>) {
    __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&pair);
  } else {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&pair);
  }
}
template <class Out>
__device__ __forceinline__ float2 Unpack(uint32_t bits) {
  if constexpr (std::is_same_v<Out, __half>) {
    return __half22float2(*reinterpret_cast<__half2*>(&bits));
  } else {
    return __bfloat1622float2(*reinterpret_cast<__nv_bfloat162*>(&bits));
  }
}

// One lane's place in a warp's 16 rows of a swizzled box in shared memory, and the sums that lie there: adds
// them to its values, or stores its values. Two bytes an element: matrices of 8 × 8; four: pairs. Value i is
// in row (i & 2) * 4 and column (i >> 2) * 8 + (i & 1) from the thread's first.
template <class T>
struct BoxLane {
  using Out = typename T::Out;
  static constexpr bool kMatrices = sizeof(Out) == 2;
  static constexpr int kRowBytes = T::kBoxColumns * static_cast<int>(sizeof(Out)),
                       kValues = T::kBoxColumns / 2;
  uint32_t row_offset, half, swizzle;

  __device__ __forceinline__ BoxLane(int warp, int lane) {
    const int row = warp * 16 + (kMatrices ? lane & 15 : lane >> 2);
    row_offset = static_cast<uint32_t>(row) * kRowBytes;
    half = static_cast<uint32_t>(kMatrices ? lane >> 4 : lane & 3);
    swizzle = static_cast<uint32_t>(kRowBytes == 128 ? row & 7 : (row >> 1) & 3);
  }
  // The chunk of the 16 × 16 elements `pair`.
  __device__ __forceinline__ uint32_t Chunk(int pair) const {
    return row_offset + (((static_cast<uint32_t>(pair * 2) + half) ^ swizzle) << 4);
  }
  // The place of values i and i + 1, four bytes each; rows 8 apart have one swizzle.
  __device__ __forceinline__ uint32_t Place(int i) const {
    const uint32_t chunk = static_cast<uint32_t>(i >> 2) * 2 + (half >> 1);
    return row_offset + static_cast<uint32_t>(i & 2) * 4 * kRowBytes + ((chunk ^ swizzle) << 4) +
           (half & 1) * 8;
  }

  __device__ __forceinline__ void Add(uint32_t box, float (&total)[kValues]) const {
    if constexpr (kMatrices) {
#pragma unroll
      for (int pair = 0; pair < T::kBoxColumns / 16; ++pair) {
        uint32_t bits[4];
        ptx::LoadMatrices(box + Chunk(pair), bits);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float2 value = Unpack<Out>(bits[i]);
          total[pair * 8 + i * 2] += value.x;
          total[pair * 8 + i * 2 + 1] += value.y;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kValues; i += 2) {
        float2 value = ptx::LoadPair(box + Place(i));
        total[i] += value.x;
        total[i + 1] += value.y;
      }
    }
  }
  // The values as they are stored: of two bytes two in a register.
  using Packed = std::conditional_t<kMatrices, uint32_t[kValues / 2], float[kValues]>;
  static __device__ __forceinline__ void Round(const float (&c)[kValues], Packed& packed) {
    if constexpr (kMatrices) {
#pragma unroll
      for (int i = 0; i < kValues / 2; ++i) packed[i] = Pack<Out>(c[2 * i], c[2 * i + 1]);
    } else {
#pragma unroll
      for (int i = 0; i < kValues; ++i) packed[i] = c[i];
    }
  }
  __device__ __forceinline__ void Store(uint32_t box, const Packed& packed) const {
    if constexpr (kMatrices) {
#pragma unroll
      for (int pair = 0; pair < T::kBoxColumns / 16; ++pair) {
        const uint32_t* v = &packed[pair * 4];
        ptx::StoreMatrices(box + Chunk(pair), v[0], v[1], v[2], v[3]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kValues; i += 2) ptx::StorePair(box + Place(i), packed[i], packed[i + 1]);
    }
  }
};

// The values of box `sub` among a thread's of a tile.
template <class T>
__device__ __forceinline__ auto BoxOf(float (&d)[T::kTileN / 2], int sub) -> float (&)[BoxLane<T>::kValues] {
  return reinterpret_cast<float(&)[BoxLane<T>::kValues]>(d[sub * BoxLane<T>::kValues]);
}

}  // namespace tandem::cuda
