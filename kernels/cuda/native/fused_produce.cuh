// File: fused_produce.cuh
//
// Warp 0 of the fused matmul kernel: draws tiles and feeds their operands, and what other GPUs have computed
// of them, into the stages.
#pragma once

#include <cstdint>

#include "kernels/cuda/native/fused_matmul.h"
#include "kernels/cuda/native/fused_traits.cuh"
#include "kernels/cuda/native/fused_words.cuh"
#include "kernels/cuda/native/ptx.cuh"

namespace tandem::cuda {

// One thread.
template <class T, class Probe>
__device__ __forceinline__ void Produce(const FusedMatmulParams& params, const FusedShared<T>& shared,
                                        int cta) {
  constexpr uint16_t kBoth = 3;
  RingPlace<T::kStages> place;
  WordWaiter<Probe> waiter{params};
  int draws = 0;

  auto draw = [&]() -> uint32_t { return cta == 0 ? atomicAdd(params.ticket, 1u) : 0u; };
  // What the ticket means, told to the cluster's other CTA; or what the leader told.
  auto unit_of = [&](uint32_t ticket) -> int {
    int slot = draws & 1;
    uint32_t parity = (draws >> 1) & 1;
    ++draws;
    if (cta != 0) {
      ptx::WaitCluster(shared.DrawFull(slot), parity);
      int unit = LoadShared(shared.DrawnUnit(slot));
      ptx::ArriveCluster(ptx::MapToCta(shared.DrawEmpty(slot), 0));
      return unit;
    }
    int unit = -1;
    if (ticket < static_cast<uint32_t>(params.units)) {
      int b = 0;
      while (b + 1 < params.bands && static_cast<int>(ticket) >= params.band[b + 1].first_unit) ++b;
      const MatmulBand& band = params.band[b];
      int in_band = static_cast<int>(ticket) - band.first_unit;
      int n = in_band / band.m_tiles;
      int m = band.first_m + in_band - n * band.m_tiles;
      n = band.first_n + (band.backwards != 0 ? band.n_tiles - 1 - n : n);
      unit = m | n << 16 | (ticket >= static_cast<uint32_t>(params.direct_from) ? kDirectUnit : 0);
    } else if (ticket == static_cast<uint32_t>(params.units) + gridDim.x / T::kCluster - 1) {
      *params.ticket = 0;  // every cluster has drawn its last
    }
    if (T::kCluster == 2) {
      ptx::WaitCluster(shared.DrawEmpty(slot), parity ^ 1);
      ptx::StoreShared(ptx::MapToCta(shared.DrawnUnit(slot), 1), unit);
      ptx::ArriveCluster(ptx::MapToCta(shared.DrawFull(slot), 1));
    }
    return unit;
  };

  int unit = unit_of(draw());
  while (unit >= 0) {
    uint32_t next = draw();  // on its way during this tile
    TilePlace<T> tile(unit, cta);
    const MatmulPiece& piece = params.piece[tile.m / params.tiles_m];
    int row = tile.m % params.tiles_m * kTileRows;
    int column = tile.n * T::kTileN;
    if (piece.ready != nullptr) {
      waiter.Wait(piece.ready);
      Probe::AfterWait(params.epoch);
      ptx::ProxyFence();  // TMA must not read from before the word
    }
    const CUtensorMap* a_map = &params.a[piece.a_map];
    const int a_slice = piece.a_slice;
    for (int block = 0; block < params.k_blocks; ++block, place.Next()) {
      int stage = place.stage;
      ptx::WaitCluster(shared.Empty(stage), place.phase ^ 1);
      if (block == 0) StoreSharedOwn(shared.Unit(stage), unit);
      uint32_t full = shared.Full(stage);
      ptx::ArriveExpect(full, T::kStageBytes);
      int k = block * T::kKBlock;
      if constexpr (T::kClusterN == 2) {  // the CTAs share A: half each
        ptx::LoadMulticast(a_map, shared.A(stage) + static_cast<uint32_t>(cta) * (T::kABytes / 2), full, k,
                           row + cta * (kTileRows / 2), a_slice, kBoth);
      } else {
        ptx::Load(a_map, shared.A(stage), full, k, row, a_slice);
      }
      if constexpr (T::kAlongN) {
        constexpr int kGroups = T::kBGroups;
        if constexpr (T::kClusterM == 2) {
#pragma unroll
          for (int i = 0; i < kGroups / 2; ++i) {
            int group = cta * (kGroups / 2) + i;
            ptx::LoadMulticast(&params.b, shared.B(stage) + static_cast<uint32_t>(group) * T::kBGroupBytes,
                               full, column + group * 64, k, 0, kBoth);
          }
        } else {
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            ptx::Load(&params.b, shared.B(stage) + group * T::kBGroupBytes, full, column + group * 64, k, 0);
          }
        }
      } else if constexpr (T::kClusterM == 2) {  // the CTAs share B
        ptx::LoadMulticast(&params.b, shared.B(stage) + static_cast<uint32_t>(cta) * (T::kBBytes / 2), full,
                           k, column + cta * (T::kTileN / 2), 0, kBoth);
      } else {
        ptx::Load(&params.b, shared.B(stage), full, k, column, 0);
      }
    }
    if constexpr (T::kSums) {
      if (piece.first_slot >= 0) {
        for (int source = 0; source < params.sources; ++source) {
          const bool banded = params.band_units_n > 0;
          const int band = banded ? tile.n / T::kClusterN / params.band_units_n : 0;
          for (int word = band; word < (banded ? band + 1 : params.word_bands); ++word) {
            waiter.Wait(params.arrived[source] + word * params.word_step);
          }
        }
        Probe::AfterWait(params.epoch);
        ptx::ProxyFence();
        for (int sub = 0; sub < T::kSubTiles; ++sub) {
          for (int source = 0; source < params.sources; source += T::kSumsPerStage, place.Next()) {
            int count = min(T::kSumsPerStage, params.sources - source);
            ptx::WaitCluster(shared.Empty(place.stage), place.phase ^ 1);
            uint32_t full = shared.Full(place.stage);
            ptx::ArriveExpect(full, static_cast<uint32_t>(count) * T::kSumBytes);
            for (int i = 0; i < count; ++i) {
              ptx::Load(&params.slots, shared.A(place.stage) + static_cast<uint32_t>(i) * T::kSumBytes, full,
                        column + sub * T::kBoxColumns, row, piece.first_slot + params.slot_of[source + i]);
            }
          }
        }
      }
    }
    unit = unit_of(next);
  }
  ptx::WaitCluster(shared.Empty(place.stage), place.phase ^ 1);
  StoreSharedOwn(shared.Unit(place.stage), -1);
  ptx::Arrive(shared.Full(place.stage));
}

}  // namespace tandem::cuda
