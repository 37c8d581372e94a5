// File: variant.cuh
//
// One source file compiles one variant of the fused matmul kernel, so that they compile in parallel.
#pragma once

#include "kernels/cuda/native/fused_matmul.cuh"
#include "tandem/dtype.h"

#define TANDEM_FUSED_VARIANT(NAME, ELEMENT, TYPE, OUT, OUT_TYPE, ALONG_N, TILE_N, CLUSTER_M, CLUSTER_N, SUMS)        \
  namespace tandem::cuda {                                                                                           \
  FusedVariant FusedVariant_##NAME() {                                                                               \
    using Traits = FusedTraits<ELEMENT, OUT, ALONG_N, TILE_N, CLUSTER_M, CLUSTER_N, SUMS>;                           \
    return {static_cast<uint8_t>(DType::TYPE), static_cast<uint8_t>(DType::OUT_TYPE), ALONG_N, TILE_N, CLUSTER_M,    \
            CLUSTER_N, SUMS, Traits::kKBlock, Traits::kBoxColumns, Traits::kSharedBytes,                             \
            reinterpret_cast<const void*>(&FusedMatmul<Traits>)};                                                    \
  }                                                                                                                  \
  }
