// File: fused_traits.cuh
//
// The fused matmul kernel's shapes: tiles, stages, boxes, and where they lie in a CTA's shared memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/fused/fused_matmul.h"

namespace tandem::cuda {

// Limits of a block on sm_90.
inline constexpr size_t kMaxSharedBytes = 227 * 1024;

// Operands of A's and B's type; `kExactSums`: see ExactMainloop, for 8-bit types; `kBlockScales`: see
// BlockScaledSums.
template <class ElementA, class ElementB, class OutType, bool kBAlongN, int kColumns, int kClusterRows,
          int kClusterColumns, bool kSum, bool kExactSums = false, bool kBlockScales = false>
struct FusedTraits {
  using A = ElementA;
  using B = ElementB;
  using Out = OutType;
  static_assert(sizeof(A) == sizeof(B));
  static constexpr bool kExact = kExactSums;
  static_assert(!kExact || sizeof(A) == 1, "wider types are summed in fp32 anyhow");
  static constexpr bool kBlocks = kBlockScales;
  static_assert(!kBlocks || kExact);
  static constexpr bool kAlongN = kBAlongN, kSums = kSum;
  static constexpr int kTileN = kColumns;
  static constexpr int kClusterM = kClusterRows, kClusterN = kClusterColumns,
                       kCluster = kClusterM * kClusterN;
  static_assert(kCluster == 1 || kCluster == 2);
  static_assert(sizeof(Out) == 2 || sizeof(Out) == 4);
  static constexpr int kKBlock = 128 / static_cast<int>(sizeof(A));  // a stage's rows are 128 bytes
  static constexpr int kBGroups = (kTileN + 63) / 64;                // of 64 columns, for B along N
  static constexpr uint32_t kBGroupBytes = 64 * 128;
  static constexpr uint32_t kABytes = kTileRows * 128,
                            kBBytes = kAlongN ? kBGroups * kBGroupBytes : kTileN * 128;
  static constexpr uint32_t kStageBytes = kABytes + kBBytes;
  static constexpr int kStages = kTileN >= 192 ? 4 : 6;
  // Columns of a warpgroup's tile whose products it sums at a time. Exact sums need registers of their own
  // for them, beside the tile's: of 192 columns those of both halves have room, of more one's.
  static constexpr int kParts = kExact ? 2 : 1, kPartColumns = kTileN / kParts;
  static constexpr bool kPartsAtOnce = kTileN <= 192;
  static_assert(kPartColumns % 8 == 0);
  static constexpr uint32_t kBPartBytes = kPartColumns * 128;  // for B along K
  // A warpgroup's tile is stored in boxes of 64 rows and as many columns; their rows are swizzled over their
  // own width.
  static constexpr int kBoxColumns = sizeof(Out) == 2 && kTileN % 64 == 0 ? 64 : 32;
  static constexpr int kSubTiles = kTileN / kBoxColumns;
  static_assert(kSubTiles * kBoxColumns == kTileN);
  static constexpr uint32_t kBoxBytes = 64 * kBoxColumns * sizeof(Out);
  static constexpr uint32_t kSumBytes = 2 * kBoxBytes;  // 128 rows of one source
  static constexpr int kSumsPerStage = kStageBytes / kSumBytes;
  // A tile's results wait in registers until the next tile's products run, where they have room there: see
  // HeldTile.
  static constexpr bool kHolds = !kExact && sizeof(Out) == 2;
  // Clusters may share tiles (fused_stream_k.h). Scales by blocks are read from a tile's first stage on.
  static constexpr bool kSplits = !kBlocks;
  static constexpr uint32_t kBarrierBytes = 512;
  // 1024 more to align the first stage.
  static constexpr size_t kStagesBytes = kStages * kStageBytes + kBarrierBytes + 1024;
  // Places for boxes that wait to be stored, of each warpgroup: a whole tile's, or as many as there is room
  // for.
  static constexpr int kStagingPlaces =
      std::min(kSubTiles, static_cast<int>((kMaxSharedBytes - kStagesBytes) / (2 * kBoxBytes)));
  static_assert(kStagingPlaces >= 2, "one is filled while the other is stored");
  static constexpr size_t kSharedBytes = kStagesBytes + 2 * kStagingPlaces * kBoxBytes;
};

// Stages of a whole tile. Two at the least where halves are multiplied in turn, of which the first and the
// last are started differently: what lies beyond K is read as zeros.
template <class T>
__device__ __forceinline__ int KBlocks(const FusedMatmulParams& params) {
  return T::kHolds ? max(params.k_blocks, 2) : params.k_blocks;
}

// Tiles of a CTA that may wait for its store warp.
inline constexpr int kHandoffs = 4;
// Numbers of tiles that are fed ahead. Their words are a separate ring, with no word for each stage. A tile
// has at least two stages where tiles are many. So a word is written again only after its readers have met
// twice, not just behind products that they began.
inline constexpr int kTileWords = 4;

// The work of a warpgroup on a tile, as one number: all of the tile (0), or a part of
// it.
struct TilePart {
  static constexpr int kLeaves = 1 << 28;
  static_assert(kMaxSegments <= 512 && kMaxPeerCtas <= 7);
  int bits;

  static __device__ __forceinline__ TilePart Of(const StreamKPart& part, int segment) {
    return {part.blocks | segment << 16 | part.peer_ctas << 25 | (part.finishes ? 0 : kLeaves)};
  }
  __device__ __forceinline__ bool IsWhole() const { return bits == 0; }
  __device__ __forceinline__ int Blocks() const { return bits & 0xFFFF; }
  __device__ __forceinline__ int Segment() const { return bits >> 16 & 0x1FF; }
  __device__ __forceinline__ int PeerCtas() const {
    return bits >> 25 & 7;
  }  // whose sums are added; 0: of a tile that is whole
  __device__ __forceinline__ bool Leaves() const {
    return (bits & kLeaves) != 0;
  }  // its sums for who finishes it
};

// The CTA's shared memory by address.
template <class T>
struct FusedShared {
  uint32_t base;
  __device__ uint32_t A(int stage) const { return base + static_cast<uint32_t>(stage) * T::kStageBytes; }
  __device__ uint32_t B(int stage) const { return A(stage) + T::kABytes; }
  __device__ uint32_t Staging(int group, int place) const {
    return base + T::kStages * T::kStageBytes +
           static_cast<uint32_t>(group * T::kStagingPlaces + place) * T::kBoxBytes;
  }
  __device__ uint32_t Barriers() const { return Staging(2, 0); }
  __device__ uint32_t Full(int stage) const { return Barriers() + static_cast<uint32_t>(stage) * 8; }
  __device__ uint32_t Empty(int stage) const { return Full(T::kStages + stage); }
  __device__ uint32_t Staged(int group, int place) const {
    return Empty(T::kStages + group * T::kStagingPlaces + place);
  }
  __device__ uint32_t Drained(int group, int place) const { return Staged(2 + group, place); }
  // The leader's draws for the cluster's other CTA.
  __device__ uint32_t ScheduleFull(int slot) const { return Drained(2, slot); }
  __device__ uint32_t ScheduleEmpty(int slot) const { return ScheduleFull(2 + slot); }
  // Tiles for the store warp.
  __device__ uint32_t HandoffReady(int slot) const { return ScheduleEmpty(2 + slot); }
  __device__ uint32_t HandoffTaken(int slot) const { return HandoffReady(kHandoffs + slot); }
  // Words behind the barriers.
  __device__ uint32_t TileWord(int at) const {
    return HandoffTaken(kHandoffs) + static_cast<uint32_t>(at) * 8;
  }
  __device__ uint32_t StagedUnit(int group, int place) const {
    return TileWord(kTileWords) + static_cast<uint32_t>(group * T::kStagingPlaces + place) * 4;
  }
  __device__ uint32_t ScheduledWork(int slot) const { return StagedUnit(2, slot); }
  // The skinny kernel draws none: how many stages have come (skinny_arrival.cuh).
  __device__ uint32_t ArrivedStages() const { return ScheduledWork(0); }
  __device__ uint32_t Handoff(int slot) const { return ScheduledWork(2 + slot); }
  static constexpr int kBarriers = 2 * T::kStages + 4 * T::kStagingPlaces + 4 + 2 * kHandoffs;
  static constexpr int kWords = 2 * kTileWords + 2 * T::kStagingPlaces + 2 + kHandoffs;
  static_assert(8 * kBarriers + 4 * kWords <= T::kBarrierBytes);
};

__device__ __forceinline__ int LoadShared(uint32_t address) {
  int value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void StoreSharedOwn(uint32_t address, int value) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
// Two at once.
__device__ __forceinline__ int2 LoadSharedPair(uint32_t address) {
  int2 value;
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void StoreSharedPair(uint32_t address, int x, int y) {
  asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}
// The same between warps without a barrier.
__device__ __forceinline__ int LoadSharedAcquire(uint32_t address) {
  int value;
  asm volatile("ld.acquire.cta.shared::cta.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ __forceinline__ void StoreSharedRelease(uint32_t address, int value) {
  asm volatile("st.release.cta.shared::cta.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// A place in the ring of stages.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// A cluster's tile as one number: m | n << 16, and whether it goes to other GPUs directly (fused_store.cuh);
// -1: no more.
inline constexpr int kDirectUnit = 1 << 30;
__device__ __forceinline__ bool IsDirect(int unit) { return (unit & kDirectUnit) != 0; }

template <class T>
struct TilePlace {
  int m, n;  // this CTA's, in tiles
  __device__ __forceinline__ TilePlace(int unit, int cta)
      : m((unit & 0xFFFF) * T::kClusterM + (T::kClusterM == 2 ? cta : 0)),
        n(((unit & ~kDirectUnit) >> 16) * T::kClusterN + (T::kClusterN == 2 ? cta : 0)) {}
};

}  // namespace tandem::cuda
