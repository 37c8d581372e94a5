// File: skinny_traits.cuh
//
// The skinny kernel's shapes. Stages, their barriers and the main loops are the fused kernel's
// (fused_traits.cuh, fused_mainloop.cuh, fused_exact_mainloop.cuh); a tile's results leave through the
// stages' memory, which is free by then.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/fused/kernel/fused_traits.cuh"

namespace tandem::cuda {

template <class ElementA, class ElementB, class OutType, bool kBAlongN, int kColumns, int kClusterRows,
          int kClusterColumns, bool kExactSums = false>
struct SkinnyTraits {
  using A = ElementA;
  using B = ElementB;
  using Out = OutType;
  static_assert(sizeof(A) == sizeof(B));
  static constexpr bool kExact = kExactSums, kAlongN = kBAlongN;
  static_assert(!kExact || sizeof(A) == 1, "wider types are summed in fp32 anyhow");
  static_assert(!kAlongN || kColumns % 64 == 0, "B's rows come in boxes of 64 columns");
  static constexpr int kTileN = kColumns, kClusterM = kClusterRows, kClusterN = kClusterColumns,
                       kCluster = kClusterM * kClusterN;
  static constexpr int kKBlock = 128 / static_cast<int>(sizeof(A));
  static constexpr int kBGroups = kTileN / 64;  // of 64 columns, for B along N
  static constexpr uint32_t kBGroupBytes = 64 * 128;
  static constexpr uint32_t kABytes = kTileRows * 128, kBBytes = kTileN * 128;
  static constexpr uint32_t kStageBytes = kABytes + kBBytes;
  static constexpr int kPartColumns = kExact && kTileN > 192 ? kTileN / 2 : kTileN,
                       kParts = kTileN / kPartColumns;
  static constexpr bool kPartsAtOnce = false;  // these wait for memory, not for sums
  static constexpr uint32_t kBPartBytes = kPartColumns * 128;
  static constexpr int kStagingPlaces = 0;  // of FusedShared: none
  static constexpr uint32_t kBoxBytes = 0;
  static constexpr uint32_t kBarrierBytes = 512, kAlignment = 1024;  // of the first stage
  static constexpr int kStages =
      (kMaxSharedBytes - kBarrierBytes - kAlignment) / kStageBytes;  // as many as there is room for
  static constexpr size_t kSharedBytes = kStages * kStageBytes + kBarrierBytes + kAlignment;
  // A warp's 16 rows of results, each shifted against the next by a bank group.
  static constexpr uint32_t kResultPitch = kTileN * sizeof(Out) + 16, kResultBytes = 16 * kResultPitch;
  static_assert(8 * kResultBytes <= kStages * kStageBytes);
};

}  // namespace tandem::cuda
