// File: few_rows.cuh
//
// The few-rows kernel: one tile a CTA, three warpgroups. Warp 0 feeds the ring of stages with B, warp 1 with A; the second and third
// warpgroup push this rank's shard (gather), compute 64 rows of the tile each, and exchange sums. See few_rows.h.
//
// What travels of a tile are *fragments*: the 16 × 16 values that a warp holds after its products, 8 a thread, as the threads hold
// them. Whoever reads a fragment has the same place in its own tile, so neither side sorts anything, and each store is 512 bytes.
//
// Blocks start in the order of their indexes, and a tile sends before it waits for the same tile of the peers; what blocks that do not
// run should push, others push after a while. So progress needs no more than one cluster on each GPU.
#pragma once

#include <cstdint>

#include "kernels/cuda/native/few_rows.h"
#include "kernels/cuda/native/few_rows_traits.cuh"
#include "kernels/cuda/native/fused_epilogue.cuh"
#include "kernels/cuda/native/fused_mainloop.cuh"
#include "kernels/cuda/native/fused_matmul.cuh"

namespace tandem::cuda {

// Waits for words of other GPUs. After an abort or a time-out nothing is waited for any more: the kernel runs on to its end, and
// what it computes counts for nothing.
template <class Probe>
struct FewRowsWaiter {
  const FewRowsParams& params;
  bool given_up = false;
  __device__ __forceinline__ void Wait(const uint64_t* word) {
    if (given_up || Probe::HasReached(ptx::LoadAcquire(word), params.epoch)) return;
    uint64_t start = ptx::GlobalTimer(), asked = start;
    while (!Probe::HasReached(ptx::LoadAcquire(word), params.epoch)) {
      uint64_t now = ptx::GlobalTimer();
      if (now - asked < 64'000) continue;  // the abort word lies in host memory: ask seldom
      asked = now;
      if (params.abort_word != nullptr && ptx::LoadAcquire(params.abort_word) != 0) given_up = true;
      if (!given_up && now - start > params.timeout_ns) {
        given_up = true;
        *params.failure = 1;
      }
      if (given_up) return;
    }
  }
};

__device__ __forceinline__ void BarrierOf(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
inline constexpr int kComputingBarrier = 1, kFirstSegmentBarrier = 2;

// Which tile a CTA has, and its place in the cluster.
template <class T>
struct FewRowsTile {
  int cta, in_m, in_n, m, n, number;
  __device__ __forceinline__ explicit FewRowsTile(const FewRowsParams& params)
      : cta(T::kCluster == 1 ? 0 : static_cast<int>(ptx::ClusterRank())), in_m(cta % T::kClusterM), in_n(cta / T::kClusterM) {
    const int cluster = static_cast<int>(blockIdx.x) / T::kCluster, clusters_m = params.tiles_m / T::kClusterM;
    m = cluster % clusters_m * T::kClusterM + in_m;
    n = cluster / clusters_m * T::kClusterN + in_n;
    number = n * params.tiles_m + m;
  }
};

// Rows of 128 bytes into a stage as a TMA box would leave them, by one warp: for what TMA cannot load. Outside of the matrix: zeros.
template <class Element>
__device__ __forceinline__ void LoadPlain(uint32_t to, int rows, const std::byte* from, int64_t pitch, int rows_left, int64_t bytes_left) {
  constexpr int kPerRow = 128 / static_cast<int>(sizeof(Element));
  for (int i = static_cast<int>(threadIdx.x) & 31; i < rows * kPerRow; i += 32) {
    const int row = i / kPerRow, byte = i % kPerRow * static_cast<int>(sizeof(Element));
    const bool inside = row < rows_left && byte < bytes_left;
    const uint32_t at = to + row * 128 + ((static_cast<uint32_t>(byte >> 4) ^ (row & 7)) << 4) + (byte & 15);
    if constexpr (sizeof(Element) == 2) {
      const uint16_t value = inside ? *reinterpret_cast<const uint16_t*>(from + row * pitch + byte) : 0;
      asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(value) : "memory");
    } else {
      const uint32_t value = inside ? *reinterpret_cast<const uint8_t*>(from + row * pitch + byte) : 0;
      asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(value) : "memory");
    }
  }
}

// Until the peers' columns of stage `block`, and some more, have come; all lanes of a warp. Returns the first stage that may not have.
template <class Probe>
__device__ __forceinline__ int AwaitShards(const FewRowsParams& params, FewRowsWaiter<Probe>& waiter, int block) {
  const int first = block / params.blocks_per_unit, count = min((params.units + 3) / 4, params.units - first);
  const int words = count * (params.world - 1);
  for (int i = static_cast<int>(threadIdx.x) & 31; i < words; i += 32) {
    const int peer = i / count, source = peer + (peer >= params.rank ? 1 : 0);
    waiter.Wait(params.arrived[source] + first + i % count);
  }
  waiter.given_up = __any_sync(0xFFFFFFFF, waiter.given_up);
  Probe::AfterWait(params.epoch);
  ptx::ProxyFence();  // TMA must not read from before the words
  __syncwarp();
  return min((first + count) * params.blocks_per_unit, params.k_blocks);
}

// A stage's part of B that this CTA loads for those of its column, one lane.
template <class T>
__device__ __forceinline__ void LoadB(const CUtensorMap* map, const FewRowsTile<T>& tile, uint32_t to, uint32_t full, int k) {
  const int column = tile.n * T::kTileN;
  if constexpr (T::kClusterM == 2) {
    const auto mask = static_cast<uint16_t>(3 << T::kClusterM * tile.in_n);
    if constexpr (T::kAlongN) {
#pragma unroll
      for (int i = 0; i < T::kBGroups / 2; ++i) {
        const int group = tile.in_m * (T::kBGroups / 2) + i;
        ptx::LoadMulticast(map, to + static_cast<uint32_t>(group) * T::kBGroupBytes, full, column + group * 64, k, 0, mask);
      }
    } else {
      ptx::LoadMulticast(map, to + static_cast<uint32_t>(tile.in_m) * (T::kBBytes / 2), full, k, column + tile.in_m * (T::kTileN / 2), 0,
                         mask);
    }
  } else if constexpr (T::kAlongN) {
#pragma unroll
    for (int group = 0; group < T::kBGroups; ++group) {
      ptx::Load(map, to + static_cast<uint32_t>(group) * T::kBGroupBytes, full, column + group * 64, k, 0);
    }
  } else {
    ptx::Load(map, to, full, k, column, 0);
  }
}

// One box of A's rows in a tile: lane `box` of the warp that feeds A has it.
template <class T>
struct FewRowsBox {
  const CUtensorMap* map;
  uint32_t offset;  // in a stage
  int row, slice, source;
  bool mine;        // this CTA loads it, for those of its row

  __device__ __forceinline__ FewRowsBox(const FewRowsParams& params, const FewRowsTile<T>& tile, int box) {
    const bool gathers = params.kind == static_cast<int>(FewRowsKind::kGather);
    const int row_of_tile = box * params.box_rows;
    source = row_of_tile / params.segment;
    offset = static_cast<uint32_t>(row_of_tile) * 128;
    row = tile.m * params.segment + row_of_tile % params.segment;
    const bool own = !gathers || source == params.rank;
    map = own ? &params.own : &params.others;
    slice = own && gathers ? 0 : source;
    mine = source < params.world && box % T::kClusterN == tile.in_n;
  }
  __device__ __forceinline__ void Load(const FewRowsTile<T>& tile, uint32_t stage, uint32_t full, int k) const {
    if constexpr (T::kClusterN == 2) {
      ptx::LoadMulticast(map, stage + offset, full, k, row, slice, static_cast<uint16_t>((1 | 1 << T::kClusterM) << tile.in_m));
    } else {
      ptx::Load(map, stage + offset, full, k, row, slice);
    }
  }
};

// Warp 0: B, which waits for nobody: as much of it as there is room for comes while the shards are on their way. It announces what
// a stage gets from both warps.
template <class T>
__device__ __forceinline__ void FeedB(const FewRowsParams& params, const FusedShared<T>& shared, const FewRowsTile<T>& tile) {
  const uint32_t bytes = static_cast<uint32_t>(params.world * params.segment) * 128 + T::kBBytes;
  const int k_blocks = params.k_blocks;
  const CUtensorMap* map = &params.b;
  RingPlace<T::kStages> place;
  for (int block = 0; block < k_blocks; ++block, place.Next()) {
    const uint32_t full = shared.Full(place.stage);
    ptx::Wait(shared.Empty(place.stage), place.phase ^ 1);
    ptx::ArriveExpect(full, bytes);
    LoadB(map, tile, shared.B(place.stage), full, block * T::kKBlock);
  }
}

// Warp 1, all lanes: A, a box a lane.
template <class T, class Probe>
__device__ __forceinline__ void FeedA(const FewRowsParams& params, const FusedShared<T>& shared, const FewRowsTile<T>& tile) {
  const FewRowsBox<T> box(params, tile, static_cast<int>(threadIdx.x) & 31);
  const bool gathers = params.kind == static_cast<int>(FewRowsKind::kGather);
  const int k_blocks = params.k_blocks;
  FewRowsWaiter<Probe> waiter{params};
  RingPlace<T::kStages> place;
  int arrived = gathers ? 0 : k_blocks;
  for (int block = 0; block < k_blocks; ++block, place.Next()) {
    if (block >= arrived) arrived = AwaitShards(params, waiter, block);
    ptx::Wait(shared.Empty(place.stage), place.phase ^ 1);
    if (box.mine) box.Load(tile, shared.A(place.stage), shared.Full(place.stage), block * T::kKBlock);
    __syncwarp();  // a lane that waited for the next stage already would hold up those that still feed this
  }
}

// Warp 0 where TMA cannot load the own rows of A, or B: all its lanes copy them into the stages, which TMA completes. Nobody feeds
// beside it.
template <class T, class Probe>
__device__ __forceinline__ void FeedPlain(const FewRowsParams& params, const FusedShared<T>& shared, const FewRowsTile<T>& tile) {
  using A = typename T::A;
  using B = typename T::B;
  const bool gathers = params.kind == static_cast<int>(FewRowsKind::kGather), first_lane = (threadIdx.x & 31) == 0;
  const int loaded_segments = params.plain_a == 0 ? params.world : gathers ? params.world - 1 : 0;
  const uint32_t bytes = static_cast<uint32_t>(loaded_segments * params.segment) * 128 + (params.plain_b == 0 ? T::kBBytes : 0);
  const int column = tile.n * T::kTileN, boxes = params.world * params.segment / params.box_rows;
  FewRowsWaiter<Probe> waiter{params};
  RingPlace<T::kStages> place;
  int arrived = gathers ? 0 : params.k_blocks;
  for (int block = 0; block < params.k_blocks; ++block, place.Next()) {
    if (block >= arrived) arrived = AwaitShards(params, waiter, block);
    const int stage = place.stage, k = block * T::kKBlock;
    ptx::Wait(shared.Empty(stage), place.phase ^ 1);
    if (params.plain_b == 0) {
      if (first_lane) LoadB(&params.b, tile, shared.B(stage), shared.Full(stage), k);
    } else if constexpr (T::kAlongN) {
      for (int group = 0; group < T::kBGroups; ++group) {
        const int64_t at = column + group * 64;
        LoadPlain<B>(shared.B(stage) + static_cast<uint32_t>(group) * T::kBGroupBytes, 64,
                     params.b_data + k * params.b_pitch + at * static_cast<int64_t>(sizeof(B)), params.b_pitch,
                     params.k_bytes / static_cast<int>(sizeof(B)) - k, (params.n - at) * static_cast<int64_t>(sizeof(B)));
      }
    } else {
      LoadPlain<B>(shared.B(stage), T::kTileN, params.b_data + column * params.b_pitch + int64_t{block} * 128, params.b_pitch,
                   params.n - column, params.k_bytes - block * 128);
    }
    for (int i = 0; i < boxes; ++i) {
      const FewRowsBox<T> box(params, tile, i);
      if (params.plain_a != 0 && (!gathers || box.source == params.rank)) {
        const int64_t from = int64_t{box.slice} * params.rows + box.row;
        LoadPlain<A>(shared.A(stage) + box.offset, params.box_rows, params.a + from * params.a_pitch + int64_t{block} * 128,
                     params.a_pitch, params.rows - box.row, params.k_bytes - block * 128);
      } else if (first_lane && box.mine) {
        box.Load(tile, shared.A(stage), shared.Full(stage), k);
      }
    }
    ptx::ProxyFenceShared();
    __syncwarp();
    if (first_lane) ptx::ArriveExpect(shared.Full(stage), bytes);
  }
}

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

// A thread's eight values of a fragment, in the output's type: columns 2 (t % 4) and the next of rows t / 4 and that + 8, then the
// same eight columns further.
template <class Out>
struct Fragment {
  static constexpr int kVectors = sizeof(Out) == 2 ? 1 : 2;
  uint4 vector[kVectors];

  __device__ __forceinline__ void Pack(const float* v) {
    if constexpr (sizeof(Out) == 2) {
      vector[0] = make_uint4(cuda::Pack<Out>(v[0], v[1]), cuda::Pack<Out>(v[2], v[3]), cuda::Pack<Out>(v[4], v[5]),
                             cuda::Pack<Out>(v[6], v[7]));
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        vector[i] = make_uint4(__float_as_uint(v[4 * i]), __float_as_uint(v[4 * i + 1]), __float_as_uint(v[4 * i + 2]),
                               __float_as_uint(v[4 * i + 3]));
      }
    }
  }
  __device__ __forceinline__ void AddTo(float* v) const {
    if constexpr (sizeof(Out) == 2) {
      const uint32_t words[4] = {vector[0].x, vector[0].y, vector[0].z, vector[0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = Unpack<Out>(words[i]);
        v[2 * i] += pair.x;
        v[2 * i + 1] += pair.y;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        v[4 * i] += __uint_as_float(vector[i].x);
        v[4 * i + 1] += __uint_as_float(vector[i].y);
        v[4 * i + 2] += __uint_as_float(vector[i].z);
        v[4 * i + 3] += __uint_as_float(vector[i].w);
      }
    }
  }
  // `at`: of a warp's fragment number `number`.
  static __device__ __forceinline__ int64_t Offset(int number, int vector_index) {
    return int64_t{number} * (kVectors * 512) + vector_index * 512 + (threadIdx.x & 31) * 16;
  }
  __device__ __forceinline__ void Send(std::byte* at, int number) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) *reinterpret_cast<uint4*>(at + Offset(number, i)) = vector[i];
  }
  __device__ __forceinline__ void Receive(const std::byte* at, int number) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vector[i] = __ldcg(reinterpret_cast<const uint4*>(at + Offset(number, i)));
  }
  // To the warp's rows of results in shared memory.
  __device__ __forceinline__ void Place(uint32_t results, uint32_t pitch, int number) const {
    const uint32_t lane = threadIdx.x & 31, at = results + lane / 4 * pitch + (number * 16 + lane % 4 * 2) * sizeof(Out);
    auto put = [&](uint32_t row, uint32_t columns, uint32_t x, uint32_t y) {
      const uint32_t to = at + row * pitch + columns * sizeof(Out);
      if constexpr (sizeof(Out) == 2) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(x) : "memory");
      } else {
        asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(x), "r"(y) : "memory");
      }
    };
    if constexpr (sizeof(Out) == 2) {
      put(0, 0, vector[0].x, 0);
      put(8, 0, vector[0].y, 0);
      put(0, 8, vector[0].z, 0);
      put(8, 8, vector[0].w, 0);
    } else {
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        put(0, 8 * i, vector[i].x, vector[i].y);
        put(8, 8 * i, vector[i].z, vector[i].w);
      }
    }
  }
};

// What a warp of the computing warpgroups does with its 16 rows of a tile after the products.
template <class T, class Probe>
struct FewRowsEpilogue {
  using Out = typename T::Out;
  static constexpr int kFragments = T::kTileN / 16;
  static constexpr int kWarpBytes = 256 * kFragments * static_cast<int>(sizeof(Out));  // in fragments
  const FewRowsParams& params;
  const FewRowsTile<T>& tile;
  const int lane, source, row;  // whose rows, and the warp's first among them
  const int fragments;          // that have columns of C
  const int64_t at;             // of the warp in a slot
  FewRowsWaiter<Probe> waiter;

  __device__ __forceinline__ FewRowsEpilogue(const FewRowsParams& all, const FewRowsTile<T>& place, int row_of_tile)
      : params(all), tile(place), lane(static_cast<int>(threadIdx.x) & 31), source(row_of_tile / all.segment),
        row(place.m * all.segment + row_of_tile % all.segment),
        fragments(max(0, min(kFragments, (all.n - place.n * T::kTileN + 15) / 16))),
        at(place.number * all.fragment_bytes + int64_t{row_of_tile % all.segment / 16} * kWarpBytes), waiter{all} {}

  __device__ __forceinline__ void Scale(float (&d)[T::kTileN / 2]) const {
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      factor[i] = params.alpha;
      const int r = row + lane / 4 + 8 * i;
      if (params.row_scale == nullptr || r >= params.rows) continue;
      if (params.row_scale_step == 0) {
        factor[i] *= __ldg(params.row_scale);
      } else if (params.row_scales_travel == 0) {
        factor[i] *= __ldg(params.row_scale + source * params.rows + r);
      } else if (source == params.rank) {
        factor[i] *= __ldg(params.row_scale + r);
      } else {
        factor[i] *= __ldcg(reinterpret_cast<const float*>(params.area[params.rank] + params.behind_slots) + source * params.rows + r);
      }
    }
#pragma unroll
    for (int i = 0; i < T::kTileN / 2; ++i) d[i] *= factor[(i >> 1) & 1];
    if (params.column_scale == nullptr) return;
#pragma unroll
    for (int i = 0; i < T::kTileN / 2; ++i) {
      if ((i & 2) != 0) continue;
      const int column = Column(i);
      const float scale = column < params.n ? __ldg(params.column_scale + column * params.column_scale_step) : 0.0f;
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
        const float bias = params.bias_is_float != 0 ? static_cast<const float*>(params.bias)[column]
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
    std::byte* place = params.area[to] + offset + at;
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
    Probe::BeforeFlag(params.epoch);
    if (threadIdx.x % static_cast<uint32_t>(params.segment * 2) != 0) return;
    ptx::StoreRelease(params.words[to] + word, params.epoch);
  }
  __device__ __forceinline__ void MeetSegment() const { BarrierOf(kFirstSegmentBarrier + source, params.segment * 2); }

  // The peers' partial sums of the own rows, and the own, in rank order.
  __device__ __forceinline__ void AddPeers(float (&d)[T::kTileN / 2]) {
    if (lane < params.world && lane != params.rank) waiter.Wait(params.arrived[lane] + tile.number);
    waiter.given_up = __any_sync(0xFFFFFFFF, waiter.given_up);
    Probe::AfterWait(params.epoch);
    __syncwarp();
    constexpr int kAtOnce = kFragments > 8 ? 2 : 4;  // beside the tile in registers
    const std::byte* slots = params.area[params.rank] + at;
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
      for (int i = 0; i < 8 * kAtOnce; ++i) total[i] = params.rank == 0 ? d[8 * first + i] : 0.0f;
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
  // What the owner of the rows has summed.
  __device__ __forceinline__ void PlaceSum(uint32_t results) {
    if (lane == 0) waiter.Wait(params.arrived[source] + params.tiles + tile.number);
    Probe::AfterWait(params.epoch);
    __syncwarp();
    const std::byte* sums = params.area[params.rank] + params.behind_slots + source * params.slot_bytes + at;
    constexpr int kAtOnce = 4;
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
    const bool scatters = params.kind == static_cast<int>(FewRowsKind::kScatter);
    const int64_t first_row = (scatters ? 0 : int64_t{source} * params.rows) + row;
#pragma unroll 4
    for (int i = lane; i < 16 * kVectors; i += 32) {
      const int r = i / kVectors, vector = i % kVectors, column = tile.n * T::kTileN + vector * kPerVector;
      if (row + r >= params.rows || column >= params.n) continue;
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
  // Of value i.
  __device__ __forceinline__ int Column(int i) const { return tile.n * T::kTileN + (i >> 2) * 8 + lane % 4 * 2 + (i & 1); }
};

// Warpgroup `group` of those that compute, of `groups`.
template <class T, class Probe>
__device__ __forceinline__ void ComputeFewRows(const FewRowsParams& params, const FusedShared<T>& shared, const FewRowsTile<T>& tile,
                                               int group, int groups) {
  const int thread = threadIdx.x & 127, warp = thread >> 5;
  if (params.kind == static_cast<int>(FewRowsKind::kGather)) {
    PushUnits<T, Probe>(params, shared, group * 128 + thread, groups * 128);
  }
  // A stage is free when all CTAs that get a part of it from here have read theirs. The warp goes on together: lanes that already
  // waited for the next stage would suspend those that have yet to free this one.
  auto release = [&](int stage) {
    if constexpr (T::kCluster > 1) {
      if (thread < T::kClusterM + T::kClusterN - 1) {
        const int row_mate = tile.in_m + T::kClusterM * thread;
        const int column_mate = (tile.in_m + thread - T::kClusterN + 1) % T::kClusterM + T::kClusterM * tile.in_n;
        ptx::ArriveRemote(ptx::MapToCta(shared.Empty(stage), static_cast<uint32_t>(thread < T::kClusterN ? row_mate : column_mate)));
      }
    } else {
      if (thread == 0) ptx::Arrive(shared.Empty(stage));
    }
    __syncwarp();
  };
  float d[T::kTileN / 2];
  RingPlace<T::kStages> place;
  if constexpr (T::kExact) {
    ExactMainloop<T>(shared, group, params.k_blocks, place, d, release);
  } else {
    FastMainloop<T>(shared, group, params.k_blocks, place, d, release);
  }
  const int row_of_tile = group * 64 + warp * 16;
  const bool active = row_of_tile < params.world * params.segment;
  FewRowsEpilogue<T, Probe> epilogue(params, tile, row_of_tile);
  if (active) epilogue.Scale(d);
  const bool gathers = params.kind == static_cast<int>(FewRowsKind::kGather);
  const bool owns = active && (gathers || epilogue.source == params.rank);
  if (active && !owns) {
    if constexpr (Probe::kFlagBeforeData) {
      epilogue.Tell(epilogue.source, tile.number);
      Probe::AfterEarlyFlag(params.epoch);
    }
    epilogue.Send(d, epilogue.source, params.rank * params.slot_bytes);
    epilogue.MeetSegment();
    if constexpr (!Probe::kFlagBeforeData) epilogue.Tell(epilogue.source, tile.number);
  }
  BarrierOf(kComputingBarrier, groups * 128);  // all products have read the stages
  if (!active) return;
  const uint32_t results = shared.A(0) + static_cast<uint32_t>(group * 4 + warp) * T::kResultBytes;
  if (owns) {
    if (!gathers) epilogue.AddPeers(d);
    epilogue.Finish(d);
    if (params.kind == static_cast<int>(FewRowsKind::kAllReduce)) {
      for (int step = 1; step < params.world; ++step) {
        epilogue.Send(d, (params.rank + step) % params.world, params.behind_slots + params.rank * params.slot_bytes);
      }
      epilogue.MeetSegment();
      for (int step = 1; step < params.world; ++step) epilogue.Tell((params.rank + step) % params.world, params.tiles + tile.number);
    }
    epilogue.Place(d, results);
  } else if (params.kind == static_cast<int>(FewRowsKind::kAllReduce)) {
    epilogue.PlaceSum(results);
  } else {
    return;
  }
  epilogue.Store(results);
}

template <class T, class Probe = NoFusedProbe>
__global__ void __cluster_dims__(T::kCluster, 1, 1) __launch_bounds__(384, 1) FewRows(const __grid_constant__ FewRowsParams params) {
  extern __shared__ uint8_t raw[];
  FusedShared<T> shared{(ptx::SharedAddress(raw) + 1023) & ~1023u};
  const FewRowsTile<T> tile(params);
  const int warpgroup = threadIdx.x >> 7, groups = params.world * params.segment > 64 ? 2 : 1;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < T::kStages; ++stage) {
      ptx::BarrierInit(shared.Full(stage), 1);
      ptx::BarrierInit(shared.Empty(stage), static_cast<uint32_t>(groups * (T::kClusterM + T::kClusterN - 1)));
    }
    ptx::BarrierInitFence();
    ptx::PrefetchMap(&params.own);
    ptx::PrefetchMap(&params.others);
    ptx::PrefetchMap(&params.b);
  }
  __syncthreads();
  if constexpr (T::kCluster > 1) ptx::ClusterBarrier();
  if (warpgroup == 0) {
    ptx::GiveRegisters<56>();  // 128 · 56 + 256 · 224 = 384 · 168: no more than the launch has taken
    const int warp = static_cast<int>(threadIdx.x) >> 5;
    if (params.plain_a != 0 || params.plain_b != 0) {
      if (warp == 0) FeedPlain<T, Probe>(params, shared, tile);
    } else {
      if (threadIdx.x == 0) FeedB<T>(params, shared, tile);
      if (warp == 1) FeedA<T, Probe>(params, shared, tile);
    }
  } else {
    ptx::TakeRegisters<224>();
    if (warpgroup <= groups) ComputeFewRows<T, Probe>(params, shared, tile, warpgroup - 1, groups);
  }
  __syncwarp();
  // No CTA may end while another still arrives on its barriers or loads for it.
  if constexpr (T::kCluster > 1) ptx::ClusterBarrier();
}

}  // namespace tandem::cuda
