// File: few_rows_variant.cuh
//
// One source file compiles the variants of the few-rows kernel for one combination of types.
#pragma once

#include <span>
#include <vector>

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
template <class A, class B, class Out, bool kAlongN, bool kExact = false>
const std::vector<FewRowsVariant>& AllFewRowsVariants() {
  static const std::vector<FewRowsVariant> variants = [] {
    std::vector<FewRowsVariant> all = {
        MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 64, 1, 2, kExact>>(),
        MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 128, 2, 1, kExact>>(),
        MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 128, 1, 2, kExact>>(),
        MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 256, 2, 1, kExact>>(),
        MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 256, 1, 2, kExact>>(),
    };
    if constexpr (!kAlongN) {
      all.insert(all.end(), {
          MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 112, 2, 1, kExact>>(),
          MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 112, 1, 2, kExact>>(),
          MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 224, 2, 1, kExact>>(),
          MakeFewRowsVariant<FewRowsTraits<A, B, Out, kAlongN, 224, 1, 2, kExact>>(),
      });
    }
    return all;
  }();
  return variants;
}

}  // namespace tandem::cuda

#define TANDEM_FEW_ROWS_VARIANTS(NAME, ...)                                                                        \
  namespace tandem::cuda {                                                                                         \
  std::span<const FewRowsVariant> FewRowsVariants_##NAME() { return AllFewRowsVariants<__VA_ARGS__>(); }           \
  }
