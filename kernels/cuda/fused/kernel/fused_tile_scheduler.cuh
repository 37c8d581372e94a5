// File: fused_tile_scheduler.cuh
//
// Chooses the next tile. Tiles are drawn from a counter, not from blockIdx: whatever CTAs are resident make
// progress in the order of the bands. A draw takes some 3000 cycles (a word in L2, the way to the cluster's
// other CTA and back, divisions), as long as the stages last that are fed ahead. So it is no part of the way
// from one tile to the next: a work index is requested when the tile before begins, and sent to the cluster
// while that tile's stages are full.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/fused_matmul.h"
#include "kernels/cuda/fused/kernel/fused_traits.cuh"
#include "kernels/cuda/fused/kernel/ptx.cuh"

namespace tandem::cuda {

// A tile, or a part of one, as the warp that feeds it needs it.
struct ScheduledTile {
  int unit;  // see TilePlace; -1: there are no more
  TilePart part;
  int first_block, blocks;  // its stages
  int piece;                // its number
  int row, column;          // where this CTA's tile begins, in the piece and in C
};

// Requests the next work index. One thread of a cluster's first CTA; nobody waits until it is used.
__device__ __forceinline__ uint32_t RequestWork(const FusedMatmulParams& params) {
  return ptx::Add(params.work_counter, 1);
}
// For a launch that was cancelled, none of whose clusters has used its work index.
__device__ __forceinline__ void ReturnWork(const FusedMatmulParams& params) {
  ptx::Add(params.work_counter, ~0u);
}

// Brings what the first tile's draw and loads read of the parameters near, which takes some hundred cycles a
// line.
__device__ __forceinline__ void TouchForDraw(const FusedMatmulParams& params) {
  const MatmulPiece& piece = params.piece[0];
  asm volatile("" ::"r"(params.band[0].first_unit), "r"(params.band[1].first_unit), "r"(params.bands),
               "r"(params.k_blocks), "r"(params.split.from), "l"(piece.ready), "h"(piece.a_slice),
               "h"(piece.first_slot), "l"(params.launch_number)
               : "memory");
}

// One thread of each CTA. All CTAs of a cluster take as many tiles.
template <class T>
class TileScheduler {
 public:
  __device__ __forceinline__ TileScheduler(const FusedMatmulParams& params, const FusedShared<T>& shared,
                                           int cta)
      : params_(params), shared_(shared), cta_(cta) {}

  // Whether the next tile is of the work index before.
  __device__ __forceinline__ bool HasMore() const { return T::kSplits && rest_ >= 0; }

  // The tile of `work`, which only the cluster's first CTA knows; it counts for nothing where HasMore.
  __device__ __forceinline__ ScheduledTile Take(uint32_t work) {
    if (HasMore()) {
      const int segment = rest_;
      rest_ = -1;
      StreamKPart parts[2];
      PartsOf(params_.split, segment, parts);
      return Shared(parts[1], segment);
    }
    if constexpr (T::kCluster == 2) work = Exchange(work);
    if (work < static_cast<uint32_t>(params_.split.from)) {
      return At(UnitOf(static_cast<int>(work)), {0}, 0, KBlocks<T>(params_));
    }
    if constexpr (T::kSplits) {
      const int segment = static_cast<int>(work) - params_.split.from;
      if (segment < params_.split.segments) {
        StreamKPart parts[2];
        if (PartsOf(params_.split, segment, parts) == 2) rest_ = segment;
        return Shared(parts[0], segment);
      }
    }
    if (cta_ == 0 && work == static_cast<uint32_t>(params_.split.from + params_.split.segments) +
                                 gridDim.x / T::kCluster - 1) {
      *params_.work_counter = 0;  // every cluster has drawn its last
    }
    ScheduledTile none = {};
    none.unit = -1;
    return none;
  }

 private:
  // The first CTA's work index.
  __device__ __forceinline__ uint32_t Exchange(uint32_t work) {
    const int slot = taken_ & 1;
    const uint32_t parity = (taken_ >> 1) & 1;
    ++taken_;
    if (cta_ != 0) {
      ptx::ArriveExpect(shared_.ScheduleFull(slot), sizeof(int));
      ptx::WaitCluster(shared_.ScheduleFull(slot), parity);
      work = static_cast<uint32_t>(LoadShared(shared_.ScheduledWork(slot)));
      ptx::ArriveCluster(ptx::MapToCta(shared_.ScheduleEmpty(slot), 0));
    } else {
      ptx::WaitCluster(shared_.ScheduleEmpty(slot), parity ^ 1);
      ptx::StoreSharedAsync(ptx::MapToCta(shared_.ScheduledWork(slot), 1), static_cast<int>(work),
                            ptx::MapToCta(shared_.ScheduleFull(slot), 1));
    }
    return work;
  }

  __device__ __forceinline__ ScheduledTile Shared(const StreamKPart& part, int segment) const {
    return At(UnitOf(part.unit), TilePart::Of(part, segment), part.first_block, part.blocks);
  }

  __device__ __forceinline__ ScheduledTile At(int unit, TilePart part, int first_block, int blocks) const {
    const TilePlace<T> tile(unit, cta_);
    const int piece = tile.m / params_.tiles_m;
    return {unit,
            part,
            first_block,
            blocks,
            piece,
            (tile.m - piece * params_.tiles_m) * kTileRows,
            tile.n * T::kTileN};
  }

  // The unit that is the `index`th in the order of the bands.
  __device__ __forceinline__ int UnitOf(int index) const {
    int b = 0;
    while (b + 1 < params_.bands && index >= params_.band[b + 1].first_unit) ++b;
    const MatmulBand& band = params_.band[b];
    const int in_band = index - band.first_unit;
    int n = in_band / band.m_tiles;
    const int m = band.first_m + in_band - n * band.m_tiles;
    n = band.first_n + (band.backwards != 0 ? band.n_tiles - 1 - n : n);
    return m | n << 16 | (index >= params_.direct_from ? kDirectUnit : 0);
  }

  const FusedMatmulParams& params_;
  const FusedShared<T>& shared_;
  int cta_;
  int taken_ = 0;
  int rest_ = -1;  // the segment whose second part comes next; -1: none
};

}  // namespace tandem::cuda
