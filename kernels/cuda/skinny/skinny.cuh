// File: skinny.cuh
//
// The skinny kernel: one tile a CTA, three warpgroups. Warp 0 feeds the ring of stages with B, warp 1 with
// A; of a gather, warp 2 pushes this rank's shard and warp 3 watches the peers'. The second and third
// warpgroup compute 64 rows of the tile each, and exchange sums; before that they push what must be there
// first. See skinny.h.
//
// Tiles travel in *fragments*: the 16 × 16 values that a warp holds after its products, 8 a thread, in the
// threads' order. The reader of a fragment has the same place in its own tile, so neither side sorts
// anything, and each store is 512 bytes.
//
// Blocks start in the order of their indexes, and a tile sends before it waits for the same tile of the
// peers; what blocks that do not run should push, others push after a while. So progress needs no more than
// one cluster on each GPU.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/kernel/fused_exact_mainloop.cuh"
#include "kernels/cuda/fused/kernel/fused_mainloop.cuh"
#include "kernels/cuda/skinny/skinny_epilogue.cuh"
#include "kernels/cuda/skinny/skinny_feed.cuh"
#include "kernels/cuda/skinny/skinny_launch_context.cuh"
#include "kernels/cuda/skinny/skinny_push.cuh"

namespace tandem::cuda {

// An all-reduce of two ranks: owners would send as many sums as the others sent parts. So each rank sends all
// that it has computed, and both add the same two rounded parts in the same order: one way over the links
// less, and the same bits. The slots are the same as in the form with owners: the receiver's part lies in the
// first half of the receiver's area, the rest in the place of sums.
template <class T, class TestHooks, class Params>
__device__ __forceinline__ void SumInOneStep(SkinnyEpilogue<T, TestHooks, Params>& epilogue,
                                             const Params& params, const FusedShared<T>& shared,
                                             const SkinnyTile<T>& tile, float (&d)[T::kTileN / 2],
                                             bool active, int warp, int groups) {
  const int peer = 1 - params.rank;
  const bool own_rows = epilogue.source == params.rank;
  const auto tell = [&] {
    TestHooks::BeforeFlag(WordValue(params));
    if (warp == 0 && epilogue.lane == 0 && !HasGivenUp(params))
      ptx::StoreRelease(params.words[peer] + tile.number, WordValue(params));
  };
  if constexpr (TestHooks::kFlagBeforeData) {
    tell();
    TestHooks::AfterEarlyFlag(WordValue(params));
  }
  if (active) {
    epilogue.Round(d);
    epilogue.Send(d, peer, (own_rows ? params.behind_slots : 0) + params.rank * params.slot_bytes);
  }
  BarrierOf(kComputingBarrier, groups * 128);  // all warps have sent, and read the stages
  if constexpr (!TestHooks::kFlagBeforeData) tell();
  if (!active) return;
  epilogue.AddPeers(d, own_rows ? 0 : params.behind_slots);
  epilogue.Finish(d);
  const uint32_t results = shared.A(0) + static_cast<uint32_t>(warp) * T::kResultBytes;
  epilogue.Place(d, results);
  epilogue.Store(results);
}

// Warpgroup `group` of those that compute, of `groups`.
template <class T, class TestHooks, class Params>
__device__ __forceinline__ void ComputeSkinny(const Params& params, const FusedShared<T>& shared,
                                              const SkinnyTile<T>& tile, int group, int groups) {
  const int thread = threadIdx.x & 127, warp = thread >> 5;
  if (params.kind == static_cast<int>(SkinnyKind::kGather)) {
    PushFirstUnits<TestHooks>(params, group * 128 + thread, groups * 128);
  }
  // A stage is free when all CTAs that get a part of it from here have read theirs. The warp goes on
  // together: lanes that already waited for the next stage would suspend those that have yet to free this
  // one.
  auto release = [&](int stage) {
    if constexpr (T::kCluster > 1) {
      if (thread < T::kClusterM + T::kClusterN - 1) {
        const int row_mate = tile.in_m + T::kClusterM * thread;
        const int column_mate =
            (tile.in_m + thread - T::kClusterN + 1) % T::kClusterM + T::kClusterM * tile.in_n;
        ptx::ArriveRemote(ptx::MapToCta(
            shared.Empty(stage), static_cast<uint32_t>(thread < T::kClusterN ? row_mate : column_mate)));
      }
    } else {
      if (thread == 0) ptx::Arrive(shared.Empty(stage));
    }
    __syncwarp();
  };
  float d[T::kTileN / 2];
  RingPlace<T::kStages> place;
  if constexpr (T::kExact) {
    ExactMainloop<T>(shared, group, params.k_blocks, place, d, release, PlainSums<T>());
  } else {
    FastMainloop<T>(shared, group, params.k_blocks, place, d, release);
  }
  const int row_of_tile = group * 64 + warp * 16;
  const bool active = row_of_tile < params.world * params.segment;
  SkinnyEpilogue<T, TestHooks, Params> epilogue(params, tile, row_of_tile);
  if (active) epilogue.Scale(d);
  if (params.one_step != 0) {
    SumInOneStep(epilogue, params, shared, tile, d, active, group * 4 + warp, groups);
    return;
  }
  const bool gathers = params.kind == static_cast<int>(SkinnyKind::kGather);
  const bool owns = active && (gathers || epilogue.source == params.rank);
  if (active && !owns) {
    if constexpr (TestHooks::kFlagBeforeData) {
      epilogue.Tell(epilogue.source, tile.number);
      TestHooks::AfterEarlyFlag(WordValue(params));
    }
    epilogue.Send(d, epilogue.source, params.rank * params.slot_bytes);
    epilogue.MeetSegment();
    if constexpr (!TestHooks::kFlagBeforeData) epilogue.Tell(epilogue.source, tile.number);
  }
  BarrierOf(kComputingBarrier, groups * 128);  // all products have read the stages
  if (!active) return;
  const uint32_t results = shared.A(0) + static_cast<uint32_t>(group * 4 + warp) * T::kResultBytes;
  if (owns) {
    if (!gathers) {
      if (params.rounds_own != 0) epilogue.Round(d);
      epilogue.AddPeers(d, 0);
    }
    epilogue.Finish(d);
    if (params.kind == static_cast<int>(SkinnyKind::kAllReduce)) {
      for (int step = 1; step < params.world; ++step) {
        epilogue.Send(d, (params.rank + step) % params.world,
                      params.behind_slots + params.rank * params.slot_bytes);
      }
      epilogue.MeetSegment();
      for (int step = 1; step < params.world; ++step)
        epilogue.Tell((params.rank + step) % params.world, params.tiles + tile.number);
    }
    epilogue.Place(d, results);
  } else if (params.kind == static_cast<int>(SkinnyKind::kAllReduce)) {
    epilogue.PlaceSum(results);
  } else {
    return;
  }
  epilogue.Store(results);
}

template <class T, class TestHooks = NoFusedTestHooks, class Params = SkinnyParams>
__global__ void __cluster_dims__(T::kCluster, 1, 1) __launch_bounds__(384, 1)
    SkinnyRows(const __grid_constant__ Params params) {
  extern __shared__ uint8_t raw[];
  const bool cancelled = BeginLaunch(params);
  FusedShared<T> shared{(ptx::SharedAddress(raw) + 1023) & ~1023u};
  const SkinnyTile<T> tile(params);
  const int warpgroup = ptx::Warpgroup(), groups = params.world * params.segment > 64 ? 2 : 1;
  if (threadIdx.x < 32 && ptx::ElectOne()) {
#pragma unroll
    for (int stage = 0; stage < T::kStages; ++stage) {
      ptx::BarrierInit(shared.Full(stage), 1);
      ptx::BarrierInit(shared.Empty(stage),
                       static_cast<uint32_t>(groups * (T::kClusterM + T::kClusterN - 1)));
    }
    ClearArrivedStages(shared);
    ptx::BarrierInitFence();
    ptx::PrefetchMap(&params.own);
    PrefetchOthers(params);
    ptx::PrefetchMap(&params.b);
  }
  if (__syncthreads_or(cancelled))
    return;  // of all CTAs alike: before a cluster meets, a shard is pushed or a word is written
  if constexpr (T::kCluster > 1) ptx::ClusterBarrierAfterInit();
  if (warpgroup == 0) {
    ptx::GiveRegisters<56>();  // 128 · 56 + 256 · 224 = 384 · 168: no more than the launch has taken
    const int warp = ptx::Warp();
    if (warp == 0 && params.kind == static_cast<int>(SkinnyKind::kGather)) AwaitFirstUnit(groups * 128);
    if (params.plain_a != 0 || params.plain_b != 0) {
      if (warp == 0) FeedPlain<T>(params, shared, tile);
    } else {
      if (warp == 0 && ptx::ElectOne()) FeedB<T>(params, shared, tile);
      if (warp == 1) FeedA<T>(params, shared, tile);
    }
    if (params.kind == static_cast<int>(SkinnyKind::kGather)) {
      if (warp == 2) PushInTurn<T, TestHooks>(params, shared);
      if (warp == 3) WatchShards<T, TestHooks>(params, shared);
    }
  } else {
    ptx::TakeRegisters<224>();
    if (warpgroup <= groups) ComputeSkinny<T, TestHooks>(params, shared, tile, warpgroup - 1, groups);
  }
  __syncwarp();
  // No CTA may end while another still arrives on its barriers or loads for it.
  if constexpr (T::kCluster > 1) ptx::ClusterBarrier();
  EndLaunch(params);
}

}  // namespace tandem::cuda
