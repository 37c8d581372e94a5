// File: fused_produce.cuh
//
// Warp 0 of the fused matmul kernel: draws tiles and feeds their operands, and what other GPUs have computed
// of them, into the stages.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/fused_matmul.h"
#include "kernels/cuda/fused/kernel/fused_partials.cuh"
#include "kernels/cuda/fused/kernel/fused_tile_scheduler.cuh"
#include "kernels/cuda/fused/kernel/fused_traits.cuh"
#include "kernels/cuda/fused/kernel/fused_words.cuh"
#include "kernels/cuda/fused/kernel/ptx.cuh"

namespace tandem::cuda {

// Waits until what all other GPUs have computed of a tile's columns is there. `awaited`: see Produce.
template <class T, class TestHooks>
__device__ __forceinline__ void AwaitSums(const FusedMatmulParams& params, const ScheduledTile& tile,
                                          WordWaiter<TestHooks>& waiter, uint32_t& awaited) {
  const bool banded = params.band_units_n > 0;
  const int band = banded ? tile.column / (T::kTileN * T::kClusterN) / params.band_units_n : 0;
  const uint32_t bit = 1u << (kMaxPieces + band);
  if ((awaited & bit) != 0) return;
  awaited |= bit;
  for (int source = 0; source < params.sources; ++source) {
    for (int word = band; word < (banded ? band + 1 : params.word_bands); ++word) {
      waiter.Wait(params.arrived[source] + word * params.word_step);
    }
  }
  TestHooks::AfterWait(params.launch_number);
  ptx::ProxyFence();
}

// One thread of each CTA. `work`: the first work index, of a cluster's first CTA.
template <class T, class TestHooks>
__device__ __forceinline__ void Produce(const FusedMatmulParams& params, const FusedShared<T>& shared,
                                        int cta, uint32_t work) {
  constexpr uint16_t kBoth = 3;
  RingPlace<T::kStages> place;
  WordWaiter<TestHooks> waiter{params};
  TileScheduler<T> draw(params, shared, cta);
  // Bits of pieces, and of word bands behind them, whose words have been awaited: looking again takes a
  // microsecond.
  uint32_t awaited = 0;
  uint32_t fed = 0;  // tiles
  const auto tell = [&](int unit, TilePart part) {
    StoreSharedPair(shared.TileWord(static_cast<int>(fed++ % kTileWords)), unit, part.bits);
  };

  ScheduledTile tile = draw.Take(work), next;
  while (tile.unit >= 0) {
    if (cta == 0 && !draw.HasMore()) work = RequestWork(params);
    // The next tile is drawn when as many stages as there are have been fed, and the next one to be freed is
    // a long way off.
    const int draw_block = min(T::kStages, tile.blocks) - 1;
    const MatmulPiece& piece = params.piece[tile.piece];
    if (piece.ready != nullptr && (awaited >> tile.piece & 1) == 0) {
      awaited |= 1u << tile.piece;
      waiter.Wait(piece.ready);
      TestHooks::AfterWait(params.launch_number);
      ptx::ProxyFence();  // TMA must not read from before the word
    }
    const CUtensorMap* a_map = &params.a[piece.a_map];
    const int a_slice = piece.a_slice;
    for (int block = 0; block < tile.blocks; ++block, place.Next()) {
      int stage = place.stage;
      ptx::Wait(shared.Empty(stage), place.phase ^ 1);
      if (block == 0) tell(tile.unit, tile.part);
      uint32_t full = shared.Full(stage);
      ptx::ArriveExpect(full, T::kStageBytes);
      int k = (tile.first_block + block) * T::kKBlock;
      if constexpr (T::kClusterN == 2) {  // the CTAs share A: half each
        ptx::LoadMulticast(a_map, shared.A(stage) + static_cast<uint32_t>(cta) * (T::kABytes / 2), full, k,
                           tile.row + cta * (kTileRows / 2), a_slice, kBoth);
      } else {
        ptx::Load(a_map, shared.A(stage), full, k, tile.row, a_slice);
      }
      if constexpr (T::kAlongN) {
        constexpr int kGroups = T::kBGroups;
        if constexpr (T::kClusterM == 2) {
#pragma unroll
          for (int i = 0; i < kGroups / 2; ++i) {
            int group = cta * (kGroups / 2) + i;
            ptx::LoadMulticast(&params.b, shared.B(stage) + static_cast<uint32_t>(group) * T::kBGroupBytes,
                               full, tile.column + group * 64, k, 0, kBoth);
          }
        } else {
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            ptx::Load(&params.b, shared.B(stage) + group * T::kBGroupBytes, full, tile.column + group * 64, k,
                      0);
          }
        }
      } else if constexpr (T::kClusterM == 2) {  // the CTAs share B
        ptx::LoadMulticast(&params.b, shared.B(stage) + static_cast<uint32_t>(cta) * (T::kBBytes / 2), full,
                           k, tile.column + cta * (T::kTileN / 2), 0, kBoth);
      } else {
        ptx::Load(&params.b, shared.B(stage), full, k, tile.column, 0);
      }
      if (block == draw_block) next = draw.Take(work);
    }
    const bool has_peers = T::kSplits && tile.part.PeerCtas() > 0;
    const bool sums = T::kSums && piece.first_slot >= 0 && !tile.part.Leaves();
    if (has_peers) AwaitPartials<T, TestHooks>(params, cta, tile.part);
    if (sums) AwaitSums<T>(params, tile, waiter, awaited);
    for (int sub = 0; (has_peers || sums) && sub < T::kSubTiles; ++sub) {
      if constexpr (T::kSplits) {
        if (has_peers) FeedPartials<T>(params, shared, cta, tile.part, sub, place);
      }
      if constexpr (T::kSums) {
        if (sums) {
          for (int source = 0; source < params.sources; source += T::kSumsPerStage, place.Next()) {
            int count = min(T::kSumsPerStage, params.sources - source);
            ptx::Wait(shared.Empty(place.stage), place.phase ^ 1);
            uint32_t full = shared.Full(place.stage);
            ptx::ArriveExpect(full, static_cast<uint32_t>(count) * T::kSumBytes);
            for (int i = 0; i < count; ++i) {
              ptx::Load(&params.slots, shared.A(place.stage) + static_cast<uint32_t>(i) * T::kSumBytes, full,
                        tile.column + sub * T::kBoxColumns, tile.row,
                        piece.first_slot + params.slot_of[source + i]);
            }
          }
        }
      }
    }
    tile = next;
  }
  ptx::Wait(shared.Empty(place.stage), place.phase ^ 1);
  tell(-1, {0});
  ptx::Arrive(shared.Full(place.stage));
}

}  // namespace tandem::cuda
