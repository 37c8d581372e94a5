// File: skinny_epilogue.cuh
//
// The skinny kernel's work on a tile's sums in registers: scales, exchange with the owners of the rows, bias,
// C.
#pragma once

#include <cstdint>

#include "kernels/cuda/skinny/skinny_fragment.cuh"
#include "kernels/cuda/skinny/skinny_launch_context.cuh"
#include "kernels/cuda/skinny/skinny_tile.cuh"

namespace tandem::cuda {

// The work of a computing warp on its 16 rows of a tile after the products.
template <class T, class TestHooks, class Params>
struct SkinnyEpilogue {
  using Out = typename T::Out;
  static constexpr int kFragments = T::kTileN / 16;
  static constexpr int kWarpBytes = 256 * kFragments * static_cast<int>(sizeof(Out));  // in fragments
  const Params& params;
  const SkinnyTile<T>& tile;
  const int lane, source, row;  // whose rows, and the warp's first among them
  const int rows;               // of the source
  const int fragments;          // that have columns of C
  const int64_t at;             // of the warp in a slot
  WordWaiter<TestHooks, Params> waiter;

  __device__ __forceinline__ SkinnyEpilogue(const Params& all, const SkinnyTile<T>& place, int row_of_tile)
      : params(all),
        tile(place),
        lane(static_cast<int>(threadIdx.x) & 31),
        source(row_of_tile / all.segment),
        row(place.m * all.segment + row_of_tile % all.segment),
        rows(min(all.rows, all.m - source * all.rows)),
        fragments(max(0, min(kFragments, (all.n - place.n * T::kTileN + 15) / 16))),
        at(place.number * all.fragment_bytes + int64_t{row_of_tile % all.segment / 16} * kWarpBytes),
        waiter{all} {}

  // In the order of the fused kernel's epilogue, so that both give the same bits.
  __device__ __forceinline__ void Scale(float (&d)[T::kTileN / 2]) const {
    const bool by_column = params.column_scale != nullptr && params.column_scale_step != 0;
    float all = params.alpha;
    if (params.column_scale != nullptr && !by_column) all *= __ldg(params.column_scale);
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      factor[i] = all;
      const int r = row + lane / 4 + 8 * i;
      if (params.row_scale == nullptr || r >= rows) continue;
      if (params.row_scale_step == 0) {
        factor[i] *= __ldg(params.row_scale);
      } else if (params.row_scales_travel == 0) {
        factor[i] *= __ldg(params.row_scale + source * params.rows + r);
      } else if (source == params.rank) {
        factor[i] *= __ldg(params.row_scale + r);
      } else {
        factor[i] *=
            __ldcg(reinterpret_cast<const float*>(AreaOf(params, params.rank) + params.behind_slots) +
                   source * params.rows + r);
      }
    }
#pragma unroll
    for (int i = 0; i < T::kTileN / 2; ++i) d[i] *= factor[(i >> 1) & 1];
    if (!by_column) return;
#pragma unroll
    for (int i = 0; i < T::kTileN / 2; ++i) {
      if ((i & 2) != 0) continue;
      const int column = Column(i);
      const float scale = column < params.n ? __ldg(params.column_scale + column) : 0.0f;
      d[i] *= scale;
      d[i + 2] *= scale;
    }
  }
  __device__ __forceinline__ void Finish(float (&d)[T::kTileN / 2]) const {
    if (params.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < T::kTileN / 2; ++i) {
        if ((i & 2) != 0) continue;
        const int column = Column(i);
        if (column >= params.n) continue;
        const float bias = params.bias_is_float != 0
                               ? static_cast<const float*>(params.bias)[column]
                               : static_cast<float>(static_cast<const Out*>(params.bias)[column]);
        d[i] += bias;
        d[i + 2] += bias;
      }
    }
    if (params.result_scale == nullptr) return;
    const float scale = *params.result_scale;
#pragma unroll
    for (int i = 0; i < T::kTileN / 2; ++i) d[i] *= scale;
  }

  // All of the warp's values, as fragments, to `to`'s area at `offset` and the warp's place.
  __device__ __forceinline__ void Send(const float (&d)[T::kTileN / 2], int to, int64_t offset) const {
    if (HasGivenUp(params)) return;
    std::byte* place = AreaOf(params, to) + offset + at;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      if (f >= fragments) continue;
      Fragment<Out> fragment;
      fragment.Pack(d + 8 * f);
      fragment.Send(place, f);
    }
  }
  // Once all warps of the segment have sent: the word number `word` at rank `to`.
  __device__ __forceinline__ void Tell(int to, int word) const {
    TestHooks::BeforeFlag(WordValue(params));
    if (threadIdx.x % static_cast<uint32_t>(params.segment * 2) != 0 || HasGivenUp(params)) return;
    ptx::StoreRelease(params.words[to] + word, WordValue(params));
  }
  __device__ __forceinline__ void MeetSegment() const {
    BarrierOf(kFirstSegmentBarrier + source, params.segment * 2);
  }

  // As who receives them has the values. (−0 is what adds nothing to any value, be it −0.)
  __device__ __forceinline__ void Round(float (&d)[T::kTileN / 2]) const {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      Fragment<Out> fragment;
      fragment.Pack(d + 8 * f);
#pragma unroll
      for (int i = 0; i < 8; ++i) d[8 * f + i] = -0.0f;
      fragment.AddTo(d + 8 * f);
    }
  }

  // The peers' partial sums of the warp's rows, which lie in slots from `offset` on, and the own, in rank
  // order.
  __device__ __forceinline__ void AddPeers(float (&d)[T::kTileN / 2], int64_t offset) {
    if (lane < params.world && lane != params.rank) waiter.Wait(params.arrived[lane] + tile.number);
    waiter.given_up = __any_sync(0xFFFFFFFF, waiter.given_up);
    TestHooks::AfterWait(WordValue(params));
    __syncwarp();
    constexpr int kAtOnce = kFragments > 8 ? 2 : kFragments % 4 == 0 ? 4 : 7;  // beside the tile in registers
    static_assert(kFragments % kAtOnce == 0);
    const std::byte* slots = AreaOf(params, params.rank) + offset + at;
    auto receive = [&](Fragment<Out>(&into)[kAtOnce], int from, int first) {
#pragma unroll
      for (int f = 0; f < kAtOnce; ++f) into[f].Receive(slots + from * params.slot_bytes, first + f);
    };
    const int first_source = params.rank == 0 ? 1 : 0;
    Fragment<Out> next[kAtOnce];
    receive(next, first_source, 0);
#pragma unroll
    for (int first = 0; first < kFragments; first += kAtOnce) {
      float total[8 * kAtOnce];
#pragma unroll
      for (int i = 0; i < 8 * kAtOnce; ++i) total[i] = params.rank == 0 ? d[8 * first + i] : -0.0f;
      for (int from = first_source; from < params.world;) {
        Fragment<Out> values[kAtOnce];
#pragma unroll
        for (int f = 0; f < kAtOnce; ++f) values[f] = next[f];
        int after = from + 1 + (from + 1 == params.rank ? 1 : 0);
        if (after < params.world) {
          receive(next, after, first);
        } else if (first + kAtOnce < kFragments) {
          receive(next, first_source, first + kAtOnce);
        }
#pragma unroll
        for (int f = 0; f < kAtOnce; ++f) values[f].AddTo(total + 8 * f);
        if (from + 1 == params.rank) {
#pragma unroll
          for (int i = 0; i < 8 * kAtOnce; ++i) total[i] += d[8 * first + i];
        }
        from = after;
      }
#pragma unroll
      for (int i = 0; i < 8 * kAtOnce; ++i) d[8 * first + i] = total[i];
    }
  }

  // The values to the warp's results in shared memory.
  __device__ __forceinline__ void Place(const float (&d)[T::kTileN / 2], uint32_t results) const {
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      Fragment<Out> fragment;
      fragment.Pack(d + 8 * f);
      fragment.Place(results, T::kResultPitch, f);
    }
  }
  // The sums of the rows' owner.
  __device__ __forceinline__ void PlaceSum(uint32_t results) {
    if (lane == 0) waiter.Wait(params.arrived[source] + params.tiles + tile.number);
    TestHooks::AfterWait(WordValue(params));
    __syncwarp();
    const std::byte* sums =
        AreaOf(params, params.rank) + params.behind_slots + source * params.slot_bytes + at;
    constexpr int kAtOnce = kFragments % 4 == 0 ? 4 : 7;
    static_assert(kFragments % kAtOnce == 0);
#pragma unroll
    for (int first = 0; first < kFragments; first += kAtOnce) {
      Fragment<Out> values[kAtOnce];
#pragma unroll
      for (int f = 0; f < kAtOnce; ++f) values[f].Receive(sums, first + f);
#pragma unroll
      for (int f = 0; f < kAtOnce; ++f) values[f].Place(results, T::kResultPitch, first + f);
    }
  }
  // The results to C, 16 bytes a lane.
  __device__ __forceinline__ void Store(uint32_t results) const {
    __syncwarp();
    constexpr int kPerVector = 16 / static_cast<int>(sizeof(Out)), kVectors = T::kTileN / kPerVector;
    const bool scatters = params.kind == static_cast<int>(SkinnyKind::kScatter);
    const int64_t first_row = (scatters ? 0 : int64_t{source} * params.rows) + row;
#pragma unroll 4
    for (int i = lane; i < 16 * kVectors; i += 32) {
      const int r = i / kVectors, vector = i % kVectors, column = tile.n * T::kTileN + vector * kPerVector;
      if (row + r >= rows || column >= params.n) continue;
      const uint32_t from = results + r * T::kResultPitch + vector * 16;
      uint4 value;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                   : "r"(from)
                   : "memory");
      Out* to = reinterpret_cast<Out*>(params.c + (first_row + r) * params.c_pitch) + column;
      if (params.c_vectors != 0 && column + kPerVector <= params.n) {
        *reinterpret_cast<uint4*>(to) = value;
        continue;
      }
      const Out* values = reinterpret_cast<const Out*>(&value);
      for (int x = 0; x < kPerVector && column + x < params.n; ++x) to[x] = values[x];
    }
  }

 private:
  // The column of value i.
  __device__ __forceinline__ int Column(int i) const {
    return tile.n * T::kTileN + (i >> 2) * 8 + lane % 4 * 2 + (i & 1);
  }
};

}  // namespace tandem::cuda
