// File: fused_matmul.cuh
//
// The fused matmul kernel: a persistent, warp-specialised GEMM for Hopper whose tiles wait for, announce, and
// sum what other GPUs deliver. See fused_matmul.h for its words.
//
// Three warpgroups a CTA. The first: warp 0 draws tiles and feeds a ring of stages by TMA (the only one that
// waits for other GPUs' rows); warps 1 and 2 store what the second and third warpgroup have computed, 64 rows of the tile each, so
// that the next tile's products never wait for a store, and warp 3 carries stored tiles to other GPUs (fused_store.cuh). A tile's
// number travels with its first stage. Sums of other GPUs travel through the same ring behind the tile's last product.
//
// Tiles are drawn from a ticket, not from blockIdx: whatever CTAs are resident make progress in the order of
// the bands.
#pragma once

#include <cstdint>

#include "kernels/cuda/native/fused_block_mainloop.cuh"
#include "kernels/cuda/native/fused_epilogue.cuh"
#include "kernels/cuda/native/fused_mainloop.cuh"
#include "kernels/cuda/native/fused_matmul.h"
#include "kernels/cuda/native/fused_staging.cuh"
#include "kernels/cuda/native/fused_store.cuh"
#include "kernels/cuda/native/fused_traits.cuh"
#include "kernels/cuda/native/fused_words.cuh"
#include "kernels/cuda/native/guard.cuh"
#include "kernels/cuda/native/ptx.cuh"

namespace tandem::cuda {

// Warp 0, one thread.
template <class T, class Probe>
__device__ __forceinline__ void Produce(const FusedMatmulParams& params, const FusedShared<T>& shared, int cta) {
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

// Warpgroup `group` of those that compute: rows [64 group, +64) of every tile.
template <class T>
__device__ __forceinline__ void Compute(const FusedMatmulParams& params, const FusedShared<T>& shared,
                                        int group, int cta) {
  int thread = threadIdx.x & 127, warp = thread >> 5, lane = thread & 31;
  RingPlace<T::kStages> place;
  // A stage is free when the computing warpgroups of all CTAs that it is loaded for have read it.
  auto release = [&](int stage) {
    if constexpr (T::kCluster == 2) {
      if (thread < 2) ptx::ArriveRemote(ptx::MapToCta(shared.Empty(stage), static_cast<uint32_t>(thread)));
    } else {
      if (thread == 0) ptx::Arrive(shared.Empty(stage));
    }
  };
  BoxStager<T> stager(shared, group, thread);
  constexpr int kValues = Epilogue<T>::kValues;

  float d[T::kTileN / 2];
  HeldTile<T> held;
  bool ended = false;
  while (true) {
    if constexpr (T::kHolds) {
      // Nothing to multiply: the next tile may wait for a peer, who may wait for these.
      if (held.unit >= 0 && ptx::AnyOfWarpgroup(group + 1, ended || !ptx::Test(shared.Full(place.stage), place.phase))) {
#pragma unroll
        for (int sub = 0; sub < T::kSubTiles; ++sub) held.Stage(stager, sub);
        held.unit = -1;
      }
    }
    ptx::Wait(shared.Full(place.stage), place.phase);
    int unit = LoadShared(shared.Unit(place.stage));
    if (unit < 0) {
      if (!T::kHolds || held.unit < 0) break;
      ended = true;
      continue;
    }
    if constexpr (T::kBlocks) {
      const TilePlace<T> at(unit, cta);
      const BlockScaleReader<T> reader(params, params.piece[at.m / params.tiles_m],
                                       at.m % params.tiles_m * kTileRows + group * 64 + warp * 16 + (lane >> 2),
                                       at.n * (T::kTileN / 128));
      BlockScaledMainloop<T>(shared, group, params.k_blocks, place, reader, d, release);
    } else if constexpr (T::kExact) {
      ExactMainloop<T>(shared, group, params.k_blocks, place, d, release);
    } else {
      FastMainloop<T, T::kHolds ? T::kSubTiles : 0>(shared, group, params.k_blocks, place, d, release,
                                                    [&](int sub) { held.Stage(stager, sub); });
    }

    TilePlace<T> tile(unit, cta);
    const MatmulPiece& piece = params.piece[tile.m / params.tiles_m];
    const bool sums = T::kSums && piece.first_slot >= 0;
    Epilogue<T> epilogue(params, piece,
                         tile.m % params.tiles_m * kTileRows + group * 64 + warp * 16 + (lane >> 2),
                         tile.n * T::kTileN + (lane & 3) * 2);
#pragma unroll
    for (int sub = 0; sub < T::kSubTiles; ++sub) {
      float c[kValues];
#pragma unroll
      for (int i = 0; i < kValues; ++i) c[i] = d[sub * kValues + i];
      epilogue.Scale(c, sub);
      if constexpr (T::kSums) {
        if (sums) {
          float total[kValues];
#pragma unroll
          for (int i = 0; i < kValues; ++i) total[i] = params.position == 0 ? c[i] : 0.0f;
          for (int source = 0; source < params.sources; ++source) {
            int in_stage = source % T::kSumsPerStage;
            if (in_stage == 0) ptx::Wait(shared.Full(place.stage), place.phase);
            uint32_t from = shared.A(place.stage) + static_cast<uint32_t>(in_stage) * T::kSumBytes +
                            static_cast<uint32_t>(group) * T::kBoxBytes;
            stager.place.Add(from, total);
            if (source + 1 == params.position) {
#pragma unroll
              for (int i = 0; i < kValues; ++i) total[i] += c[i];
            }
            if (in_stage == T::kSumsPerStage - 1 || source == params.sources - 1) {
              asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
              release(place.stage);
              place.Next();
            }
          }
#pragma unroll
          for (int i = 0; i < kValues; ++i) c[i] = total[i];
        }
      }
      epilogue.Finish(c, sub);
      if constexpr (T::kHolds) {
        BoxLane<T>::Round(c, held.box[sub]);
      } else {
        typename BoxLane<T>::Packed packed;
        BoxLane<T>::Round(c, packed);
        stager.Stage(packed, unit);
      }
    }
    if constexpr (T::kHolds) held.unit = unit;
  }
  stager.End();
}

template <class T, class Probe = NoFusedProbe>
__global__ void __cluster_dims__(T::kCluster, 1, 1) __launch_bounds__(384, 1)
    FusedMatmul(const __grid_constant__ FusedMatmulParams params) {
  extern __shared__ uint8_t raw[];
  const bool called_off = FoundGuardRaised(params.guard_word, params.guard_value);
  FusedShared<T> shared{(ptx::SharedAddress(raw) + 1023) & ~1023u};
  int cta = T::kCluster == 1 ? 0 : static_cast<int>(ptx::ClusterRank());
  int warpgroup = threadIdx.x >> 7;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < T::kStages; ++stage) {
      ptx::BarrierInit(shared.Full(stage), 1);
      ptx::BarrierInit(shared.Empty(stage), 2 * T::kCluster);
    }
    for (int i = 0; i < 4; ++i) {
      ptx::BarrierInit(shared.Staged(i >> 1, i & 1), 4);
      ptx::BarrierInit(shared.Drained(i >> 1, i & 1), 1);
    }
    for (int slot = 0; slot < kParcels; ++slot) {
      ptx::BarrierInit(shared.ParcelReady(slot), 2);
      ptx::BarrierInit(shared.ParcelTaken(slot), 1);
    }
    for (int slot = 0; slot < 2; ++slot) {
      ptx::BarrierInit(shared.DrawFull(slot), 1);
      ptx::BarrierInit(shared.DrawEmpty(slot), 1);
    }
    ptx::BarrierInitFence();
    for (int i = 0; i < 2; ++i) {
      ptx::PrefetchMap(&params.a[i]);
      ptx::PrefetchMap(&params.out[i]);
    }
    ptx::PrefetchMap(&params.b);
    if (T::kSums) ptx::PrefetchMap(&params.slots);
  }
  if (__syncthreads_or(called_off)) return;  // of all CTAs alike: before a cluster meets, a ticket is drawn or a word is written
  if constexpr (T::kCluster > 1) ptx::ClusterBarrierAfterInit();

  if (warpgroup == 0) {
    ptx::GiveRegisters<40>();
    int warp = threadIdx.x >> 5;
    if (warp == 3) {
      CarryTiles<T, Probe>(params, shared, cta);
    } else if ((threadIdx.x & 31) == 0) {
      if (warp == 0) Produce<T, Probe>(params, shared, cta);
      if (warp == 1 || warp == 2) StoreTiles<T, Probe>(params, shared, warp - 1, cta);
    }
  } else {
    ptx::TakeRegisters<232>();
    Compute<T>(params, shared, warpgroup - 1, cta);
  }
  __syncwarp();
  // No CTA may end while the other still arrives on its barriers or loads for it.
  if constexpr (T::kCluster > 1) ptx::ClusterBarrier();
}

}  // namespace tandem::cuda
