// File: few_rows_variant.cuh
//
// One source file compiles the variants of the few-rows kernel for one combination of types.
#pragma once

#include <span>

#include "kernels/cuda/native/few_rows.cuh"
#include "kernels/cuda/native/variant.cuh"

namespace tandem::cuda {

template <class Traits, class Probe = NoFusedProbe>
FewRowsVariant MakeFewRowsVariant() {
  FewRowsVariant variant = {};
  variant.type = DTypeOf<typename Traits::A>();
  variant.b_type = DTypeOf<typename Traits::B>();
  variant.out_type = DTypeOf<typename Traits::Out>();
  variant.exact = Traits::kExact;
  variant.b_along_n = Traits::kAlongN;
  variant.tile_n = Traits::kTileN;
  variant.cluster_m = Traits::kClusterM;
  variant.cluster_n = Traits::kClusterN;
  variant.shared_bytes = Traits::kSharedBytes;
  variant.kernel = reinterpret_cast<const void*>(&FewRows<Traits, Probe>);
  return variant;
}

// The shapes of MakeFewRowsLayout.
template <class A, class B, class Out, bool kAlongN, bool kExact = false, class Probe = NoFusedProbe>
std::span<const FewRowsVariant> AllFewRowsVariants() {
  static const FewRowsVariant variants[] = {
      MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 64, 1, 2, kExact>, Probe>(),
      MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 128, 2, 1, kExact>, Probe>(),
      MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 128, 1, 2, kExact>, Probe>(),
      MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 256, 2, 1, kExact>, Probe>(),
      MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 256, 1, 2, kExact>, Probe>(),
  };
  return variants;
}

}  // namespace tandem::cuda

#define TANDEM_FEW_ROWS_VARIANTS(NAME, ...)                                                                        \
  namespace tandem::cuda {                                                                                         \
  std::span<const FewRowsVariant> FewRowsVariants_##NAME() { return AllFewRowsVariants<__VA_ARGS__>(); }           \
  }
