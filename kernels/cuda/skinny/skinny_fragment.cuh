// File: skinny_fragment.cuh
//
// The units in which tiles travel: see skinny.cuh.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/kernel/fused_box.cuh"

namespace tandem::cuda {

// A thread's eight values of a fragment, in the output's type: columns 2 (t % 4) and the next of rows t / 4
// and that + 8, then the same eight columns further.
template <class Out>
struct Fragment {
  static constexpr int kVectors = sizeof(Out) == 2 ? 1 : 2;
  uint4 vector[kVectors];

  __device__ __forceinline__ void Pack(const float* v) {
    if constexpr (sizeof(Out) == 2) {
      vector[0] = make_uint4(cuda::Pack<Out>(v[0], v[1]), cuda::Pack<Out>(v[2], v[3]),
                             cuda::Pack<Out>(v[4], v[5]), cuda::Pack<Out>(v[6], v[7]));
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        vector[i] = make_uint4(__float_as_uint(v[4 * i]), __float_as_uint(v[4 * i + 1]),
                               __float_as_uint(v[4 * i + 2]), __float_as_uint(v[4 * i + 3]));
      }
    }
  }
  __device__ __forceinline__ void AddTo(float* v) const {
    if constexpr (sizeof(Out) == 2) {
      const uint32_t words[4] = {vector[0].x, vector[0].y, vector[0].z, vector[0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = Unpack<Out>(words[i]);
        v[2 * i] += pair.x;
        v[2 * i + 1] += pair.y;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        v[4 * i] += __uint_as_float(vector[i].x);
        v[4 * i + 1] += __uint_as_float(vector[i].y);
        v[4 * i + 2] += __uint_as_float(vector[i].z);
        v[4 * i + 3] += __uint_as_float(vector[i].w);
      }
    }
  }
  // `at`: of a warp's fragment number `number`.
  static __device__ __forceinline__ int64_t Offset(int number, int vector_index) {
    return int64_t{number} * (kVectors * 512) + vector_index * 512 + (threadIdx.x & 31) * 16;
  }
  __device__ __forceinline__ void Send(std::byte* at, int number) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) *reinterpret_cast<uint4*>(at + Offset(number, i)) = vector[i];
  }
  __device__ __forceinline__ void Receive(const std::byte* at, int number) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      vector[i] = __ldcg(reinterpret_cast<const uint4*>(at + Offset(number, i)));
  }
  // To the warp's rows of results in shared memory.
  __device__ __forceinline__ void Place(uint32_t results, uint32_t pitch, int number) const {
    const uint32_t lane = threadIdx.x & 31,
                   at = results + lane / 4 * pitch + (number * 16 + lane % 4 * 2) * sizeof(Out);
    auto put = [&](uint32_t row, uint32_t columns, uint32_t x, uint32_t y) {
      const uint32_t to = at + row * pitch + columns * sizeof(Out);
      if constexpr (sizeof(Out) == 2) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
      } else {
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(x), "r"(y) : "memory");
      }
    };
    if constexpr (sizeof(Out) == 2) {
      put(0, 0, vector[0].x, 0);
      put(8, 0, vector[0].y, 0);
      put(0, 8, vector[0].z, 0);
      put(8, 8, vector[0].w, 0);
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        put(0, 8 * i, vector[i].x, vector[i].y);
        put(8, 8 * i, vector[i].z, vector[i].w);
      }
    }
  }
};

}  // namespace tandem::cuda
