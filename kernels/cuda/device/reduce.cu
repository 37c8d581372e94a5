// Fixed-order sums and other reductions: fp32 accumulators, one rounding at the end. No contraction into fused
// multiply-adds: the host backend computes the same bits.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/launch_status.h"
#include "kernels/cuda/device/sync.cuh"
#include "kernels/reduction.h"

namespace tandem::cuda {

Status ReduceKernelsLoad();

namespace {

constexpr int kThreads = 256;
constexpr int kMaxVectorSources = 8;

// 16 bytes of elements.
template <typename Element>
union Vector {
  static constexpr int kCount = 16 / sizeof(Element);
  uint4 word;
  Element element[kCount];
  __device__ Vector() {}
};

// The epilogue in the order of a product's: scale, bias, result scale.
__device__ inline float Finish(const ReduceLaunch& reduce, float sum, float bias) {
  sum = __fmul_rn(sum, reduce.scale);
  if (reduce.bias != nullptr) sum = __fadd_rn(sum, bias);
  if (reduce.result_scale != nullptr) sum = __fmul_rn(sum, *reduce.result_scale);
  return sum;
}

template <typename Element, int kSources>
__device__ inline void SumVector(const ReduceLaunch& reduce, int64_t index) {
  Vector<Element> loaded[kSources];
#pragma unroll
  for (int s = 0; s < kSources; ++s) loaded[s].word = static_cast<const uint4*>(reduce.source[s])[index];
  Vector<Element> out;
#pragma unroll
  for (int e = 0; e < Vector<Element>::kCount; ++e) {
    float sum = ToFloat(loaded[0].element[e]);
#pragma unroll
    for (int s = 1; s < kSources; ++s) sum = __fadd_rn(sum, ToFloat(loaded[s].element[e]));
    FromFloat(Finish(reduce, sum, 0.0f), &out.element[e]);
  }
  static_cast<uint4*>(reduce.destination)[index] = out.word;
}

// All views dense, of one type, 16-byte aligned: all loads of a word's sources are in flight together, and
// two words.
template <typename Element, int kSources>
__global__ void __launch_bounds__(kThreads)
    SumVectors(const __grid_constant__ ReduceLaunch reduce, int64_t words) {
  if (IsCancelled(reduce.guard)) return;
  int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += step) {
    SumVector<Element, kSources>(reduce, i);
  }
}

// kSums: the reduction is a sum.
template <bool kSums>
__global__ void __launch_bounds__(kThreads)
    ReduceStrided(const __grid_constant__ ReduceLaunch reduce, int64_t first) {
  if (IsCancelled(reduce.guard)) return;
  int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = first + int64_t{blockIdx.x} * kThreads + threadIdx.x; i < reduce.count; i += step) {
    const Strides* const outer[2] = {&reduce.destination_stride, &reduce.bias_stride};
    int64_t at[2];
    Offsets<2>(i, reduce.dims, reduce.extent, outer, at);
    float sum = 0.0f;
    for (int s = 0; s < reduce.sources; ++s) {
      const Strides* const strides[1] = {&reduce.source_stride[s]};
      int64_t offset[1];
      Offsets<1>(i, reduce.dims, reduce.extent, strides, offset);
      float value = LoadElement(reduce.source[s], reduce.source_type[s], offset[0]);
      const float both =
          kSums ? __fadd_rn(sum, value) : Combine(static_cast<ReduceOp>(reduce.reduce_op), sum, value);
      sum = s == 0 ? value : both;
    }
    float bias = reduce.bias != nullptr ? LoadElement(reduce.bias, reduce.bias_type, at[1]) : 0.0f;
    StoreElement(reduce.destination, reduce.type, at[0], Finish(reduce, sum, bias));
  }
}

// Integers wrap, as in NCCL.
template <typename Integer>
__global__ void __launch_bounds__(kThreads) ReduceIntegers(const __grid_constant__ ReduceLaunch reduce) {
  if (IsCancelled(reduce.guard)) return;
  int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < reduce.count; i += step) {
    const Strides* const outer[1] = {&reduce.destination_stride};
    int64_t at[1];
    Offsets<1>(i, reduce.dims, reduce.extent, outer, at);
    Integer result = 0;
    for (int s = 0; s < reduce.sources; ++s) {
      const Strides* const strides[1] = {&reduce.source_stride[s]};
      int64_t offset[1];
      Offsets<1>(i, reduce.dims, reduce.extent, strides, offset);
      const Integer value = static_cast<const Integer*>(reduce.source[s])[offset[0]];
      result = s == 0 ? value : Combine(static_cast<ReduceOp>(reduce.reduce_op), result, value);
    }
    static_cast<Integer*>(reduce.destination)[at[0]] = result;
  }
}

unsigned Blocks(int64_t items) {
  return static_cast<unsigned>(std::clamp<int64_t>((items + kThreads - 1) / kThreads, 1, 132 * 8));
}

using SumKernel = void (*)(const ReduceLaunch, int64_t);

template <typename Element, int... kSources>
constexpr std::array<SumKernel, sizeof...(kSources)> SumKernels(std::integer_sequence<int, kSources...>) {
  return {&SumVectors<Element, kSources + 1>...};
}
template <typename Element>
constexpr auto kSums = SumKernels<Element>(std::make_integer_sequence<int, kMaxVectorSources>());

SumKernel VectorKernel(DType type, int sources) {
  auto index = static_cast<size_t>(sources - 1);
  switch (type) {
    case DType::kF32: return kSums<float>[index];
    case DType::kF16: return kSums<__half>[index];
    case DType::kBf16: return kSums<__nv_bfloat16>[index];
    case DType::kF8E4M3: return kSums<__nv_fp8_e4m3>[index];
    default: return kSums<__nv_fp8_e5m2>[index];
  }
}

}  // namespace

Status LaunchReduce(const ReduceLaunch& reduce, CUstream_st* stream) {
  auto type = static_cast<DType>(reduce.type);
  if (!IsFloating(type)) {
    switch (DTypeBytes(type)) {
      case 1: ReduceIntegers<uint8_t><<<Blocks(reduce.count), kThreads, 0, stream>>>(reduce); break;
      case 4: ReduceIntegers<int32_t><<<Blocks(reduce.count), kThreads, 0, stream>>>(reduce); break;
      default: ReduceIntegers<int64_t><<<Blocks(reduce.count), kThreads, 0, stream>>>(reduce); break;
    }
    return LaunchStatus("ReduceIntegers");
  }
  auto addresses = reinterpret_cast<uintptr_t>(reduce.destination);
  bool same_type = true;
  for (int s = 0; s < reduce.sources; ++s) {
    addresses |= reinterpret_cast<uintptr_t>(reduce.source[s]);
    same_type = same_type && reduce.source_type[s] == reduce.type;
  }
  if (static_cast<ReduceOp>(reduce.reduce_op) != ReduceOp::kSum) {
    ReduceStrided<false><<<Blocks(reduce.count), kThreads, 0, stream>>>(reduce, 0);
    return LaunchStatus("ReduceStrided");
  }
  int64_t first = 0;
  if (reduce.contiguous && same_type && addresses % 16 == 0 && reduce.sources <= kMaxVectorSources) {
    auto per_word = static_cast<int64_t>(16 / DTypeBytes(type));
    int64_t words = reduce.count / per_word;
    if (words > 0) {
      VectorKernel(type, reduce.sources)<<<Blocks(words), kThreads, 0, stream>>>(reduce, words);
      TANDEM_RETURN_IF_ERROR(LaunchStatus("SumVectors"));
    }
    first = words * per_word;
    if (first == reduce.count) return Status::Ok();
  }
  ReduceStrided<true><<<Blocks(reduce.count - first), kThreads, 0, stream>>>(reduce, first);
  return LaunchStatus("ReduceStrided");
}

Status ReduceKernelsLoad() {
  for (DType type : {DType::kF32, DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2}) {
    for (int sources = 1; sources <= kMaxVectorSources; ++sources) {
      TANDEM_RETURN_IF_ERROR(
          LoadKernel("SumVectors", reinterpret_cast<const void*>(VectorKernel(type, sources))));
    }
  }
  for (const void* kernel : {reinterpret_cast<const void*>(&ReduceStrided<true>),
                             reinterpret_cast<const void*>(&ReduceStrided<false>),
                             reinterpret_cast<const void*>(&ReduceIntegers<uint8_t>),
                             reinterpret_cast<const void*>(&ReduceIntegers<int32_t>),
                             reinterpret_cast<const void*>(&ReduceIntegers<int64_t>)}) {
    TANDEM_RETURN_IF_ERROR(LoadKernel("a reduction", kernel));
  }
  return Status::Ok();
}

}  // namespace tandem::cuda
