// File: few_rows_push.cuh
//
// How the few-rows kernel brings its rank's shard to the peers.
#pragma once

#include <cstdint>

#include "kernels/cuda/native/few_rows_tile.cuh"

namespace tandem::cuda {

// Of this launch: several groups, which count their epochs each for itself, share the state of a lane.
__device__ __forceinline__ uint64_t PushStamp(const FewRowsParams& params) {
  return params.epoch * 0x9E3779B97F4A7C15ull ^ reinterpret_cast<uint64_t>(params.area[params.rank]);
}

// Unit `unit` of this rank's shard to all peers, by all computing threads, `thread` of `threads`. Pushing it again does no harm.
template <class Probe>
__device__ __forceinline__ void PushUnit(const FewRowsParams& params, int unit, int thread, int threads) {
  const int unit_bytes = params.blocks_per_unit * 128, begin = unit * unit_bytes, bytes = min(unit_bytes, params.k_bytes - begin);
  const int per_row = bytes / 16, count = params.rows * per_row;
  auto tell = [&] {
    Probe::BeforeFlag(params.epoch);
    if (thread < params.world && thread != params.rank) ptx::StoreRelease(params.words[thread] + unit, params.epoch);
    if (thread == params.rank) params.pushed[unit] = PushStamp(params);
  };
  if constexpr (Probe::kFlagBeforeData) {
    tell();
    Probe::AfterEarlyFlag(params.epoch);
  }
  const int64_t slot = params.rank * params.slot_bytes;
  constexpr int kAtOnce = 4;
  for (int first = thread; first < count; first += threads * kAtOnce) {
    uint4 values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * threads, row = at / per_row;
      if (at >= count) continue;
      const std::byte* from = params.a + row * params.a_pitch + begin + (at - row * per_row) * 16;
      if (params.plain_a == 0) {
        values[i] = __ldg(reinterpret_cast<const uint4*>(from));
      } else {
        uint32_t words[4] = {};
        for (int byte = 0; byte < 16; ++byte) words[byte / 4] |= static_cast<uint32_t>(from[byte]) << byte % 4 * 8;
        values[i] = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * threads, row = at / per_row;
      if (at >= count) continue;
      const int64_t to = slot + int64_t{row} * params.k_bytes + begin + (at - row * per_row) * 16;
      for (int step = 1; step < params.world; ++step) {
        const int peer = (params.rank + step) % params.world;
        *reinterpret_cast<uint4*>(params.area[peer] + to) = values[i];
      }
    }
  }
  if (unit == 0 && params.row_scales_travel != 0) {
    for (int i = thread; i < params.rows; i += threads) {
      for (int step = 1; step < params.world; ++step) {
        std::byte* area = params.area[(params.rank + step) % params.world];
        reinterpret_cast<float*>(area + params.behind_slots)[params.rank * params.rows + i] = params.row_scale[i];
      }
    }
  }
  BarrierOf(kComputingBarrier, threads);
  if constexpr (!Probe::kFlagBeforeData) tell();
}

// The computing warpgroups' part of a gather before their products: the CTA's units; and if A does not come for a while, which is when
// other blocks of this kernel may not run either, those that nobody has pushed.
template <class T, class Probe>
__device__ __forceinline__ void PushUnits(const FewRowsParams& params, const FusedShared<T>& shared, int thread, int threads) {
  for (int unit = static_cast<int>(blockIdx.x); unit < params.units; unit += static_cast<int>(gridDim.x)) {
    PushUnit<Probe>(params, unit, thread, threads);
  }
  constexpr uint64_t kPatienceNs = 20'000;
  const uint32_t told = shared.DrawnUnit(0);
  if (thread == 0) {
    const uint64_t start = ptx::GlobalTimer();
    bool here;
    while (!(here = ptx::Test(shared.Full(0), 0)) && ptx::GlobalTimer() - start < kPatienceNs) {
    }
    StoreSharedOwn(told, here ? -1 : 0);
  }
  BarrierOf(kComputingBarrier, threads);
  if (LoadShared(told) < 0) return;
  for (int unit = 0;;) {
    BarrierOf(kComputingBarrier, threads);  // all have read what was told
    if (thread == 0) {
      while (unit < params.units && *static_cast<volatile uint64_t*>(params.pushed + unit) == PushStamp(params)) ++unit;
      StoreSharedOwn(told, unit);
    }
    BarrierOf(kComputingBarrier, threads);
    unit = LoadShared(told);
    if (unit >= params.units) return;
    PushUnit<Probe>(params, unit++, thread, threads);
  }
}

}  // namespace tandem::cuda
