// File: fused_draw.cuh
//
// Which tile comes next. Tiles are drawn from a ticket, not from blockIdx: whatever CTAs are resident make progress in the order of the
// bands. A draw takes some 3000 cycles (a word in L2, the way to the cluster's other CTA and back, divisions), as long as the
// stages last that are fed ahead. So it is no part of the way from one tile to the next: a ticket is asked for when the tile before
// begins, and told to the cluster while that tile's stages are full.
#pragma once

#include <cstdint>

#include "kernels/cuda/native/fused_matmul.h"
#include "kernels/cuda/native/fused_traits.cuh"
#include "kernels/cuda/native/ptx.cuh"

namespace tandem::cuda {

// A tile as the warp that feeds it needs it.
struct DrawnTile {
  int unit;         // see TilePlace; -1: there are no more
  int piece;        // its number
  int row, column;  // where this CTA's tile begins, in the piece and in C
};

// Asks for the next ticket. One thread of a cluster's first CTA; nobody waits until it is used.
__device__ __forceinline__ uint32_t AskTicket(const FusedMatmulParams& params) { return ptx::Add(params.ticket, 1); }

// One thread of each CTA. All CTAs of a cluster take as many tiles.
template <class T>
class TileDraw {
 public:
  __device__ __forceinline__ TileDraw(const FusedMatmulParams& params, const FusedShared<T>& shared, int cta)
      : params_(params), shared_(shared), cta_(cta) {}

  // The tile of `ticket`, which only the cluster's first CTA knows.
  __device__ __forceinline__ DrawnTile Take(uint32_t ticket) {
    const int slot = taken_ & 1;
    const uint32_t parity = (taken_ >> 1) & 1;
    ++taken_;
    int unit;
    if (cta_ != 0) {
      ptx::ArriveExpect(shared_.DrawFull(slot), sizeof(int));
      ptx::WaitCluster(shared_.DrawFull(slot), parity);
      unit = LoadShared(shared_.DrawnUnit(slot));
      ptx::ArriveCluster(ptx::MapToCta(shared_.DrawEmpty(slot), 0));
    } else {
      unit = UnitOf(ticket);
      if constexpr (T::kCluster == 2) {
        ptx::WaitCluster(shared_.DrawEmpty(slot), parity ^ 1);
        ptx::StoreSharedAsync(ptx::MapToCta(shared_.DrawnUnit(slot), 1), unit, ptx::MapToCta(shared_.DrawFull(slot), 1));
      }
    }
    const TilePlace<T> tile(unit, cta_);
    const int piece = tile.m / params_.tiles_m;
    return {unit, piece, (tile.m - piece * params_.tiles_m) * kTileRows, tile.n * T::kTileN};
  }

 private:
  __device__ __forceinline__ int UnitOf(uint32_t ticket) const {
    if (ticket < static_cast<uint32_t>(params_.units)) {
      int b = 0;
      while (b + 1 < params_.bands && static_cast<int>(ticket) >= params_.band[b + 1].first_unit) ++b;
      const MatmulBand& band = params_.band[b];
      const int in_band = static_cast<int>(ticket) - band.first_unit;
      int n = in_band / band.m_tiles;
      const int m = band.first_m + in_band - n * band.m_tiles;
      n = band.first_n + (band.backwards != 0 ? band.n_tiles - 1 - n : n);
      return m | n << 16 | (ticket >= static_cast<uint32_t>(params_.direct_from) ? kDirectUnit : 0);
    }
    if (ticket == static_cast<uint32_t>(params_.units) + gridDim.x / T::kCluster - 1) {
      *params_.ticket = 0;  // every cluster has drawn its last
    }
    return -1;
  }

  const FusedMatmulParams& params_;
  const FusedShared<T>& shared_;
  int cta_;
  int taken_ = 0;
};

}  // namespace tandem::cuda
