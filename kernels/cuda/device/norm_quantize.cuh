// File: norm_quantize.cuh
//
// The quantisation of normed rows, which all kernels with a norm share, so that they give the same bits. A
// thread has words of 16 bytes of a row, neighbouring lanes neighbouring words.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/norm_quantization.h"

namespace tandem::cuda {

inline constexpr unsigned kBlockColumns = 128;  // kScaleBlock
// plan::kLeastAmax, as a magnitude's bits, and plan::kMaxE4M3.
inline constexpr uint32_t kLeastAmaxBits = 0x3B000000;
inline constexpr float kMaxE4M3 = 448.0f;

// Magnitudes compare as their bits do, and a NaN is greater than all others.
__device__ inline uint32_t MagnitudeOf(float value) { return __float_as_uint(value) & 0x7FFFFFFF; }
__device__ inline uint32_t Greater(uint32_t a, uint32_t b) { return a > b ? a : b; }

template <typename Element, int kCount>
__device__ inline uint32_t GreatestOf(const Element (&elements)[kCount]) {
  uint32_t most = 0;
#pragma unroll
  for (int e = 0; e < kCount; ++e) most = Greater(most, MagnitudeOf(ToFloat(elements[e])));
  return most;
}

// The greatest among kLanes neighbouring lanes, in each of them. All lanes of the warp call it.
template <int kLanes>
__device__ inline uint32_t GreatestOfLanes(uint32_t most) {
  if constexpr (kLanes == 32) {
    return __reduce_max_sync(0xFFFFFFFF, most);
  } else {
#pragma unroll
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2)
      most = Greater(most, __shfl_xor_sync(0xFFFFFFFF, most, lanes));
    return most;
  }
}

// The scale for elements of which this is the greatest magnitude.
__device__ inline float QuantizationScale(uint32_t most) {
  return __fdiv_rn(__uint_as_float(Greater(most, kLeastAmaxBits)), kMaxE4M3);
}

// The scale that is given, once earlier work has been awaited; 0 where scales are made.
__device__ inline float GivenScale(const NormQuantization& to) {
  return to.static_scale == nullptr ? 0.0f : *to.static_scale;
}

template <typename Element>
__device__ inline void StoreQuantized(const NormQuantization& to, int64_t at, Element element, float scale) {
  FromFloat(__fdiv_rn(ToFloat(element), scale), static_cast<__nv_fp8_e4m3*>(to.out) + at);
}

// Word `at` of all rows: as many bytes as it has elements.
template <typename Element, int kCount>
__device__ inline void StoreQuantizedWord(const NormQuantization& to, int64_t at,
                                          const Element (&elements)[kCount], float scale) {
  union {
    __nv_fp8x2_storage_t pair[kCount / 2];
    uint32_t word[kCount / 4];
  } bytes;
#pragma unroll
  for (int e = 0; e < kCount; e += 2) {
    const float2 both = {__fdiv_rn(ToFloat(elements[e]), scale), __fdiv_rn(ToFloat(elements[e + 1]), scale)};
    bytes.pair[e / 2] = __nv_cvt_float2_to_fp8x2(both, __NV_SATFINITE, __NV_E4M3);
  }
  if constexpr (kCount == 8) {
    static_cast<uint2*>(to.out)[at] = make_uint2(bytes.word[0], bytes.word[1]);
  } else {
    static_cast<uint32_t*>(to.out)[at] = bytes.word[0];
  }
}

// The scale of this lane's word of row `row`, of which `first` is the word's first column; it is stored, too.
// All lanes of the warp call it, of which those without a word have a `most` of 0.
template <int kCount>
__device__ inline float BlockScale(const NormQuantization& to, bool has, int64_t row, unsigned first,
                                   uint32_t most) {
  constexpr int kLanes = static_cast<int>(kBlockColumns) / kCount;
  const float scale = QuantizationScale(GreatestOfLanes<kLanes>(most));
  if (has && first % kBlockColumns == 0)
    to.scales[row * to.row_pitch + static_cast<int64_t>(first / kBlockColumns) * to.block_pitch] = scale;
  return scale;
}

}  // namespace tandem::cuda
