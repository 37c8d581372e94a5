// File: fused_compute.cuh
//
// The two computing warpgroups of the fused matmul kernel. Between a tile's last product and the next tile's
// first the tensor cores work for the other warpgroup at most, which is there as well most of the time. So
// the code there only scales, adds and rounds. What it reads is asked for beside the last products, and what
// it leaves is staged beside the next tile's.
#pragma once

#include <cstdint>

#include "kernels/cuda/native/fused_block_scales.cuh"
#include "kernels/cuda/native/fused_epilogue.cuh"
#include "kernels/cuda/native/fused_exact_mainloop.cuh"
#include "kernels/cuda/native/fused_mainloop.cuh"
#include "kernels/cuda/native/fused_matmul.h"
#include "kernels/cuda/native/fused_staging.cuh"
#include "kernels/cuda/native/fused_traits.cuh"
#include "kernels/cuda/native/ptx.cuh"

namespace tandem::cuda {

// Adds to a box's values `c` what other GPUs computed of it, in the order of the ranks. It comes through the
// stages.
template <class T, class Release>
__device__ __forceinline__ void AddSources(const FusedMatmulParams& params, const FusedShared<T>& shared,
                                           int group, const BoxLane<T>& lane, RingPlace<T::kStages>& place,
                                           float (&c)[BoxLane<T>::kValues], const Release& release) {
  constexpr int kValues = BoxLane<T>::kValues;
  float total[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) total[i] = params.position == 0 ? c[i] : 0.0f;
  for (int source = 0; source < params.sources; ++source) {
    const int in_stage = source % T::kSumsPerStage;
    if (in_stage == 0) ptx::Wait(shared.Full(place.stage), place.phase);
    const uint32_t from = shared.A(place.stage) + static_cast<uint32_t>(in_stage) * T::kSumBytes +
                          static_cast<uint32_t>(group) * T::kBoxBytes;
    lane.Add(from, total);
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

// Warpgroup `group` of those that compute: rows [64 group, +64) of every tile.
template <class T>
__device__ __forceinline__ void Compute(const FusedMatmulParams& params, const FusedShared<T>& shared,
                                        int group, int cta) {
  int thread = threadIdx.x & 127, warp = thread >> 5, lane = thread & 31;
  RingPlace<T::kStages> place;
  // A stage is free when the computing warpgroups of all CTAs that it is loaded for have read it.
  const uint32_t first_empty =
      T::kCluster == 2 ? ptx::MapToCta(shared.Empty(0), static_cast<uint32_t>(thread) & 1) : shared.Empty(0);
  auto release = [&](int stage) __attribute__((always_inline)) {
    const uint32_t empty = first_empty + static_cast<uint32_t>(stage) * 8;
    if constexpr (T::kCluster == 2) {
      if (thread < 2) ptx::ArriveRemote(empty);
    } else {
      if (thread == 0) ptx::Arrive(empty);
    }
  };
  BoxStager<T> stager(shared, group, thread);
  Epilogue<T> epilogue(params);
  constexpr int kValues = BoxLane<T>::kValues;

  float d[T::kTileN / 2];
  HeldTile<T> held;
  bool ended = false;
  while (true) {
    if constexpr (T::kHolds) {
      // Nothing to multiply: the next tile may wait for a peer, who may wait for these.
      if (held.unit >= 0 &&
          ptx::AnyOfWarpgroup(group + 1, ended || !ptx::Test(shared.Full(place.stage), place.phase))) {
#pragma unroll
        for (int sub = 0; sub < T::kSubTiles; ++sub) held.Stage(stager, sub);
        held.unit = -1;
      }
    }
    ptx::Wait(shared.Full(place.stage), place.phase);
    const int unit = LoadShared(shared.Unit(place.stage));
    if (unit < 0) {
      if (!T::kHolds || held.unit < 0) break;
      ended = true;
      continue;
    }
    // The thread's first row of a tile, within its piece.
    const auto row_of = [&](const TilePlace<T>& tile) __attribute__((always_inline)) {
      return tile.m % params.tiles_m * kTileRows + group * 64 + warp * 16 + (lane >> 2);
    };
    bool sums = false, finish = false;
    const auto begin_epilogue = [&]() __attribute__((always_inline)) {
      const TilePlace<T> tile(unit, cta);
      const MatmulPiece& piece = params.piece[tile.m / params.tiles_m];
      sums = T::kSums && piece.first_slot >= 0;
      finish = epilogue.Finishes(piece);
      epilogue.Begin(piece, row_of(tile), tile.n * T::kTileN + (lane & 3) * 2);
    };
    if constexpr (T::kBlocks) {
      const TilePlace<T> tile(unit, cta);
      const BlockScaledSums<T> scaled(params, params.piece[tile.m / params.tiles_m], row_of(tile), tile.n * T::kTileN);
      ExactMainloop<T>(shared, group, params.k_blocks, place, d, release, scaled);
      begin_epilogue();
    } else if constexpr (T::kExact) {
      ExactMainloop<T>(shared, group, params.k_blocks, place, d, release, PlainSums<T>());
      begin_epilogue();
    } else {
      const BesideProducts<T, decltype(begin_epilogue)> beside{held, stager, begin_epilogue};
      FastMainloop<T>(shared, group, params.k_blocks, place, d, release, beside);
    }

    const auto leave = [&](int sub, const float(&c)[kValues]) __attribute__((always_inline)) {
      if constexpr (T::kHolds) {
        BoxLane<T>::Round(c, held.box[sub]);
      } else {
        typename BoxLane<T>::Packed packed;
        BoxLane<T>::Round(c, packed);
        stager.Stage(packed, unit);
      }
    };
    // `then`: what follows the rows' factors.
    const auto leave_all = [&](const auto& then) __attribute__((always_inline)) {
#pragma unroll
      for (int sub = 0; sub < T::kSubTiles; ++sub) {
        auto& c = BoxOf<T>(d, sub);
        epilogue.ScaleRows(c);
        then(c, sub);
        leave(sub, c);
      }
    };
    // The common ways have code of their own: where ways meet again, the compiler moves all values.
    if (!sums && !finish && !epilogue.by_column) {
      leave_all([](auto&, int) {});
    } else if (Epilogue<T>::kScales && !sums && !finish) {
      leave_all([&](auto& c, int sub) __attribute__((always_inline)) { epilogue.ScaleColumns(c, sub); });
    } else {
      leave_all([&](auto& c, int sub) __attribute__((always_inline)) {
        if (epilogue.by_column) epilogue.ScaleColumns(c, sub);
        if constexpr (T::kSums) {
          if (sums) AddSources<T>(params, shared, group, stager.place, place, c, release);
        }
        if (finish) epilogue.Finish(c, sub);
      });
    }
    if constexpr (T::kHolds) held.unit = unit;
  }
  stager.End();
}

}  // namespace tandem::cuda
