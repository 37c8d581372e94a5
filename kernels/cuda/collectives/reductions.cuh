// File: reductions.cuh
//
// The kernel of phases for a reduction that is no sum, by type. Each takes as many sources as any item has:
// such reductions are rare, so small code matters more than speed.
#pragma once

#include "kernels/cuda/collectives/phases.cuh"
#include "kernels/cuda/collectives/reductions.h"

namespace tandem::cuda {

// `Kernels::Of<Element>()` is the kernel for an element type.
template <typename Kernels>
auto ReductionKernelOf(DType type) {
  switch (type) {
    case DType::kF32: return Kernels::template Of<float>();
    case DType::kF16: return Kernels::template Of<__half>();
    case DType::kBf16: return Kernels::template Of<__nv_bfloat16>();
    case DType::kF8E4M3: return Kernels::template Of<__nv_fp8_e4m3>();
    case DType::kF8E5M2: return Kernels::template Of<__nv_fp8_e5m2>();
    case DType::kI32: return Kernels::template Of<int32_t>();
    case DType::kI64: return Kernels::template Of<int64_t>();
    default: return Kernels::template Of<uint8_t>();
  }
}

}  // namespace tandem::cuda
