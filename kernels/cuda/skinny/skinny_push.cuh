// File: skinny_push.cuh
//
// How the skinny kernel brings its rank's shard to the peers, in units of columns, one a CTA. Were all
// units on their way at once, the first one would be there no sooner than the last, for they share the links.
// So each has its turn, at the links' pace: the first ones before anything can be computed, the others beside
// the products, by a warp that has nothing else to do.
#pragma once

#include <cstdint>

#include "kernels/cuda/skinny/skinny_arrival.cuh"

namespace tandem::cuda {

// Unit `unit` of this rank's shard to all peers, by `threads` threads that `meet`; `thread` is one of them.
// Pushing it again does no harm.
template <class TestHooks, class Params, class Meet>
__device__ __forceinline__ void PushUnit(const Params& params, int unit, int thread, int threads, Meet meet) {
  const int unit_bytes = params.blocks_per_unit * 128, begin = unit * unit_bytes,
            bytes = min(unit_bytes, params.k_bytes - begin);
  const int per_row = bytes / 16;
  auto tell = [&] {
    TestHooks::BeforeFlag(WordValue(params));
    if (HasGivenUp(params)) return;
    if (thread < params.world && thread != params.rank)
      ptx::StoreRelease(params.words[thread] + unit, WordValue(params));
    if (thread == params.rank) PushedUnits(params)[unit] = PushStamp(params);
  };
  if constexpr (TestHooks::kFlagBeforeData) {
    tell();
    TestHooks::AfterEarlyFlag(WordValue(params));
  }
  const int64_t slot = params.rank * params.slot_bytes;
  constexpr int kAtOnce = 4;
  const int step_rows = threads / per_row, step_columns = threads % per_row;
  int row = thread / per_row, column = thread % per_row;  // of the next 16 bytes
  while (row < params.rows && !HasGivenUp(params)) {
    uint4 values[kAtOnce];
    int64_t to[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      to[i] = -1;
      if (row < params.rows) {
        const std::byte* from = params.a + row * params.a_pitch + begin + column * 16;
        if (params.plain_a == 0) {
          values[i] = __ldg(reinterpret_cast<const uint4*>(from));
        } else {
          uint32_t words[4] = {};
          for (int byte = 0; byte < 16; ++byte)
            words[byte / 4] |= static_cast<uint32_t>(from[byte]) << byte % 4 * 8;
          values[i] = make_uint4(words[0], words[1], words[2], words[3]);
        }
        to[i] = slot + int64_t{row} * params.k_bytes + begin + column * 16;
      }
      row += step_rows;
      column += step_columns;
      if (column >= per_row) {
        column -= per_row;
        ++row;
      }
    }
    for (int step = 1; step < params.world; ++step) {
      std::byte* area = AreaOf(params, (params.rank + step) % params.world);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (to[i] >= 0) *reinterpret_cast<uint4*>(area + to[i]) = values[i];
      }
    }
  }
  if (unit == 0 && params.row_scales_travel != 0 && !HasGivenUp(params)) {
    for (int i = thread; i < params.rows; i += threads) {
      for (int step = 1; step < params.world; ++step) {
        std::byte* area = AreaOf(params, (params.rank + step) % params.world);
        reinterpret_cast<float*>(area + params.behind_slots)[params.rank * params.rows + i] =
            params.row_scale[i];
      }
    }
  }
  meet();
  if constexpr (!TestHooks::kFlagBeforeData) tell();
}

// Until `cycles` after `start`, when unit number cycles / params.cycles_per_unit is due.
__device__ __forceinline__ void AwaitTurn(int64_t start, int64_t cycles) {
  while (clock64() - start < cycles) {
  }
}

// The computing warpgroups' part of a gather, before their products: the units that are due before the first
// columns of the peers can have come. They do it faster than one warp. Once the CTA's first one is on its
// way, or if it has none, AwaitFirstUnit lets B's warp go.
template <class TestHooks, class Params>
__device__ __forceinline__ void PushFirstUnits(const Params& params, int thread, int threads) {
  const int64_t start = clock64();
  bool holds = true;
  auto let_go = [&] {
    if (holds) ArriveAt(kFirstUnitBarrier, threads + 32);
    holds = false;
  };
  for (int unit = static_cast<int>(blockIdx.x); unit < params.first_units;
       unit += static_cast<int>(gridDim.x)) {
    AwaitTurn(start, int64_t{unit} * params.cycles_per_unit);
    PushUnit<TestHooks>(params, unit, thread, threads, [&] {
      let_go();
      BarrierOf(kComputingBarrier, threads);
    });
  }
  let_go();
}

// B's warp, before its first load: all that the stages of all CTAs have room for, 20 MB and more, would stand
// before the shard in the memory's queue, and the peers wait for the shard.
__device__ __forceinline__ void AwaitFirstUnit(int computing_threads) {
  BarrierOf(kFirstUnitBarrier, computing_threads + 32);
}

// One warp's part: the CTA's other units, each when its turn has come. If the peers' shards do not come for a
// while, other blocks of this kernel may not run either. Then the warp pushes their units too: the peers may
// wait for them as this rank waits for the peers' units.
template <class T, class TestHooks, class Params>
__device__ __forceinline__ void PushInTurn(const Params& params, const FusedShared<T>& shared) {
  constexpr int64_t kWaitBudget = 40'000;  // cycles, some 20 µs
  const int lane = static_cast<int>(threadIdx.x) & 31, step = static_cast<int>(gridDim.x);
  const auto meet = [] { __syncwarp(); };
  const int64_t start = clock64();
  for (int unit = static_cast<int>(blockIdx.x); unit < params.units; unit += step) {
    if (unit < params.first_units) continue;
    AwaitTurn(start, int64_t{unit} * params.cycles_per_unit);
    __syncwarp();
    PushUnit<TestHooks>(params, unit, lane, 32, meet);
  }
  const int64_t wait_budget = kWaitBudget + int64_t{params.units} * params.cycles_per_unit;
  auto all_here = [&] { return __any_sync(0xFFFFFFFF, ArrivedStages(shared) >= params.k_blocks) != 0; };
  while (clock64() - start < wait_budget) {
    if (all_here()) return;
    __nanosleep(500);
  }
  for (int unit = 0; unit < params.units && !all_here(); ++unit) {
    const bool pushed = *static_cast<volatile uint64_t*>(PushedUnits(params) + unit) == PushStamp(params);
    if (!__any_sync(0xFFFFFFFF, pushed)) PushUnit<TestHooks>(params, unit, lane, 32, meet);
  }
}

}  // namespace tandem::cuda
