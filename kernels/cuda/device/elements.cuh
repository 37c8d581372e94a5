// File: elements.cuh
//
// Elements of every DType on the device: conversions to and from float, with the roundings of tandem/dtype.h,
// and offsets in strided boxes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/device/launch.h"

namespace tandem::cuda {

template <DType type>
struct ElementOf;
template <>
struct ElementOf<DType::kF32> {
  using Type = float;
};
template <>
struct ElementOf<DType::kF16> {
  using Type = __half;
};
template <>
struct ElementOf<DType::kBf16> {
  using Type = __nv_bfloat16;
};
template <>
struct ElementOf<DType::kF8E4M3> {
  using Type = __nv_fp8_e4m3;
};
template <>
struct ElementOf<DType::kF8E5M2> {
  using Type = __nv_fp8_e5m2;
};

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__half value) { return __half2float(value); }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float ToFloat(__nv_fp8_e4m3 value) { return static_cast<float>(value); }
__device__ inline float ToFloat(__nv_fp8_e5m2 value) { return static_cast<float>(value); }

__device__ inline void FromFloat(float value, float* out) { *out = value; }
__device__ inline void FromFloat(float value, __half* out) { *out = __float2half_rn(value); }
__device__ inline void FromFloat(float value, __nv_bfloat16* out) { *out = __float2bfloat16_rn(value); }
// e4m3 has no infinity and saturates; e5m2 overflows to infinity.
__device__ inline void FromFloat(float value, __nv_fp8_e4m3* out) {
  out->__x = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}
__device__ inline void FromFloat(float value, __nv_fp8_e5m2* out) {
  out->__x = __nv_cvt_float_to_fp8(value, __NV_NOSAT, __NV_E5M2);
}

__device__ inline float LoadElement(const void* base, uint8_t type, int64_t index) {
  switch (static_cast<DType>(type)) {
    case DType::kF32: return static_cast<const float*>(base)[index];
    case DType::kF16: return ToFloat(static_cast<const __half*>(base)[index]);
    case DType::kBf16: return ToFloat(static_cast<const __nv_bfloat16*>(base)[index]);
    case DType::kF8E4M3: return ToFloat(static_cast<const __nv_fp8_e4m3*>(base)[index]);
    default: return ToFloat(static_cast<const __nv_fp8_e5m2*>(base)[index]);
  }
}

__device__ inline void StoreElement(void* base, uint8_t type, int64_t index, float value) {
  switch (static_cast<DType>(type)) {
    case DType::kF32: static_cast<float*>(base)[index] = value; break;
    case DType::kF16: FromFloat(value, static_cast<__half*>(base) + index); break;
    case DType::kBf16: FromFloat(value, static_cast<__nv_bfloat16*>(base) + index); break;
    case DType::kF8E4M3: FromFloat(value, static_cast<__nv_fp8_e4m3*>(base) + index); break;
    default: FromFloat(value, static_cast<__nv_fp8_e5m2*>(base) + index); break;
  }
}

// Splits a linear index into the box's coordinates and adds up `Views` offsets.
template <int Views>
__device__ inline void Offsets(int64_t index, int dims, const int64_t* extent,
                               const Strides* const (&strides)[Views], int64_t (&offsets)[Views]) {
#pragma unroll
  for (int v = 0; v < Views; ++v) offsets[v] = 0;
  for (int d = dims - 1; d >= 0; --d) {
    int64_t coordinate = index % extent[d];
    index /= extent[d];
#pragma unroll
    for (int v = 0; v < Views; ++v) offsets[v] += coordinate * strides[v]->of[d];
  }
}

}  // namespace tandem::cuda
