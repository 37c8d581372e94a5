// File: skinny_variant.cuh
//
// One source file compiles the variants of the skinny kernel for one combination of types.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/fused/kernel/variant.cuh"
#include "kernels/cuda/skinny/skinny.cuh"

namespace tandem::cuda {

template <class Traits, class TestHooks = NoFusedTestHooks, class Params = SkinnyParams>
SkinnyVariant MakeSkinnyVariant() {
  SkinnyVariant variant = {};
  variant.type = DTypeOf<typename Traits::A>();
  variant.b_type = DTypeOf<typename Traits::B>();
  variant.out_type = DTypeOf<typename Traits::Out>();
  variant.exact = Traits::kExact;
  variant.b_along_n = Traits::kAlongN;
  variant.tile_n = Traits::kTileN;
  variant.cluster_m = Traits::kClusterM;
  variant.cluster_n = Traits::kClusterN;
  variant.shared_bytes = Traits::kSharedBytes;
  variant.kernel = reinterpret_cast<const void*>(&SkinnyRows<Traits, TestHooks, Params>);
  return variant;
}

// The shapes of MakeSkinnyLayout.
template <class Params, class A, class B, class Out, bool kAlongN, bool kExact = false>
const std::vector<SkinnyVariant>& AllSkinnyVariants() {
  static const std::vector<SkinnyVariant> variants = [] {
    std::vector<SkinnyVariant> all;
    const auto add = [&]<int... kShape>(std::integer_sequence<int, kShape...>) {
      using Traits = SkinnyTraits<A, B, Out, kAlongN, kShape..., kExact>;
      all.push_back(MakeSkinnyVariant<Traits, NoFusedTestHooks, Params>());
    };
    // Columns of a tile, CTAs of a cluster along M and N.
    add(std::integer_sequence<int, 64, 1, 2>{});
    add(std::integer_sequence<int, 128, 2, 1>{});
    add(std::integer_sequence<int, 128, 1, 2>{});
    add(std::integer_sequence<int, 256, 2, 1>{});
    add(std::integer_sequence<int, 256, 1, 2>{});
    if constexpr (!kAlongN) {
      add(std::integer_sequence<int, 112, 2, 1>{});
      add(std::integer_sequence<int, 112, 1, 2>{});
      add(std::integer_sequence<int, 224, 2, 1>{});
      add(std::integer_sequence<int, 224, 1, 2>{});
    }
    return all;
  }();
  return variants;
}

}  // namespace tandem::cuda

#define TANDEM_SKINNY_VARIANTS(NAME, ...)                  \
  namespace tandem::cuda {                                 \
  std::span<const SkinnyVariant> SkinnyVariants_##NAME() { \
    return AllSkinnyVariants<SkinnyParams, __VA_ARGS__>(); \
  }                                                        \
  }
