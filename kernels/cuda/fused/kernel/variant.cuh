// File: variant.cuh
//
// One source file compiles one variant of the fused matmul kernel, so that they compile in parallel.
#pragma once

#include "kernels/cuda/fused/kernel/fused_matmul.cuh"
#include "tandem/element_type.h"

namespace tandem::cuda {

template <class T>
constexpr uint8_t DTypeOf() {
  if constexpr (std::is_same_v<T, float>) return static_cast<uint8_t>(DType::kF32);
  if constexpr (std::is_same_v<T, __half>) return static_cast<uint8_t>(DType::kF16);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return static_cast<uint8_t>(DType::kBf16);
  if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) return static_cast<uint8_t>(DType::kF8E4M3);
  if constexpr (std::is_same_v<T, __nv_fp8_e5m2>) return static_cast<uint8_t>(DType::kF8E5M2);
}

template <class Traits, class TestHooks = NoFusedTestHooks>
FusedVariant MakeFusedVariant() {
  FusedVariant variant = {};
  variant.type = DTypeOf<typename Traits::A>();
  variant.b_type = DTypeOf<typename Traits::B>();
  variant.out_type = DTypeOf<typename Traits::Out>();
  variant.exact = Traits::kExact;
  variant.blocks = Traits::kBlocks;
  variant.b_along_n = Traits::kAlongN;
  variant.tile_n = Traits::kTileN;
  variant.cluster_m = Traits::kClusterM;
  variant.cluster_n = Traits::kClusterN;
  variant.sums = Traits::kSums;
  variant.splits = Traits::kSplits;
  variant.k_block = Traits::kKBlock;
  variant.box_columns = Traits::kBoxColumns;
  variant.shared_bytes = Traits::kSharedBytes;
  variant.kernel = reinterpret_cast<const void*>(&FusedMatmul<Traits, TestHooks>);
  return variant;
}

}  // namespace tandem::cuda

// Compiled once for engines, and with TANDEM_CLIENT_LAUNCH for clients (client_fused.h).
#ifdef TANDEM_CLIENT_LAUNCH
#define TANDEM_FUSED_VARIANT(NAME, A, B, OUT, ...)                               \
  namespace tandem::cuda {                                                       \
  FusedVariant ClientFusedVariant_##NAME() {                                     \
    return MakeFusedVariant<FusedTraits<A, B, OUT, __VA_ARGS__>, ClientFused>(); \
  }                                                                              \
  }
#else
#define TANDEM_FUSED_VARIANT(NAME, A, B, OUT, ...)                                                       \
  namespace tandem::cuda {                                                                               \
  FusedVariant FusedVariant_##NAME() { return MakeFusedVariant<FusedTraits<A, B, OUT, __VA_ARGS__>>(); } \
  }
#endif
