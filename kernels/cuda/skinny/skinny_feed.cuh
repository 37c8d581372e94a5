// File: skinny_feed.cuh
//
// How the skinny kernel's stages are filled: by two warps through TMA, or by one that copies what TMA
// cannot load.
#pragma once

#include <cstdint>

#include "kernels/cuda/skinny/skinny_arrival.cuh"

namespace tandem::cuda {

// The part of B's stage that this CTA loads for all CTAs of the column, one lane.
template <class T>
__device__ __forceinline__ void LoadB(const CUtensorMap* map, const SkinnyTile<T>& tile, uint32_t to,
                                      uint32_t full, int k) {
  const int column = tile.n * T::kTileN;
  if constexpr (T::kClusterM == 2) {
    const auto mask = static_cast<uint16_t>(3 << T::kClusterM * tile.in_n);
    if constexpr (T::kAlongN) {
#pragma unroll
      for (int i = 0; i < T::kBGroups / 2; ++i) {
        const int group = tile.in_m * (T::kBGroups / 2) + i;
        ptx::LoadMulticast(map, to + static_cast<uint32_t>(group) * T::kBGroupBytes, full,
                           column + group * 64, k, 0, mask);
      }
    } else {
      ptx::LoadMulticast(map, to + static_cast<uint32_t>(tile.in_m) * (T::kBBytes / 2), full, k,
                         column + tile.in_m * (T::kTileN / 2), 0, mask);
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

// One box of A's rows in a tile: lane `box` of the warp that feeds A has it. It may reach into the next
// rank's rows, or beyond A: what comes of rows that are not the source's is computed and never stored.
template <class T>
struct SkinnyBox {
  const CUtensorMap* map;
  uint32_t offset;  // in a stage
  int row, slice, source;
  bool mine;  // this CTA loads it for all CTAs of the row

  __device__ __forceinline__ SkinnyBox(const SkinnyParams& params, const SkinnyTile<T>& tile, int box) {
    const bool gathers = params.kind == static_cast<int>(SkinnyKind::kGather);
    const int row_of_tile = box * params.box_rows;
    source = row_of_tile / params.segment;
    offset = static_cast<uint32_t>(row_of_tile) * 128;
    row = tile.m * params.segment + row_of_tile % params.segment;
    const bool own = !gathers || source == params.rank;
    map = own ? &params.own : &params.others;
    slice = own ? 0 : source;
    if (!gathers) row += source * params.rows;
    mine = source < params.world && box % T::kClusterN == tile.in_n;
  }
  __device__ __forceinline__ void Load(const SkinnyTile<T>& tile, uint32_t stage, uint32_t full,
                                       int k) const {
    if constexpr (T::kClusterN == 2) {
      ptx::LoadMulticast(map, stage + offset, full, k, row, slice,
                         static_cast<uint16_t>((1 | 1 << T::kClusterM) << tile.in_m));
    } else {
      ptx::Load(map, stage + offset, full, k, row, slice);
    }
  }
};

// Warp 0: B, which waits for no peer: as much of it as there is room for comes while the shards are on their
// way (some more into the L2 cache made it slower). It announces what a stage gets from both warps.
template <class T>
__device__ __forceinline__ void FeedB(const SkinnyParams& params, const FusedShared<T>& shared,
                                      const SkinnyTile<T>& tile) {
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
template <class T, class Params>
__device__ __forceinline__ void FeedA(const Params& params, const FusedShared<T>& shared,
                                      const SkinnyTile<T>& tile) {
  SkinnyBox<T> box(params, tile, static_cast<int>(threadIdx.x) & 31);
  ChooseHalf(params, &box.map);
  const bool gathers = params.kind == static_cast<int>(SkinnyKind::kGather);
  const int k_blocks = params.k_blocks;
  RingPlace<T::kStages> place;
  int arrived = gathers ? 0 : k_blocks;
  for (int block = 0; block < k_blocks; ++block, place.Next()) {
    if (block >= arrived) arrived = AwaitShards(shared, block);
    ptx::Wait(shared.Empty(place.stage), place.phase ^ 1);
    if (box.mine) box.Load(tile, shared.A(place.stage), shared.Full(place.stage), block * T::kKBlock);
    __syncwarp();  // a lane that waited for the next stage already would hold up those that still feed this
  }
}

// Rows of 128 bytes into a stage as a TMA box would leave them, by one warp: for what TMA cannot load.
// Outside of the matrix: zeros.
template <class Element>
__device__ __forceinline__ void LoadPlain(uint32_t to, int rows, const std::byte* from, int64_t pitch,
                                          int rows_left, int64_t bytes_left) {
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

// Warp 0 where TMA cannot load the own rows of A, or B: all its lanes copy them into the stages, which TMA
// completes. Nobody feeds beside it.
template <class T, class Params>
__device__ __forceinline__ void FeedPlain(const Params& params, const FusedShared<T>& shared,
                                          const SkinnyTile<T>& tile) {
  using A = typename T::A;
  using B = typename T::B;
  const bool gathers = params.kind == static_cast<int>(SkinnyKind::kGather),
             first_lane = (threadIdx.x & 31) == 0;
  const int loaded_segments = params.plain_a == 0 ? params.world : gathers ? params.world - 1 : 0;
  const uint32_t bytes =
      static_cast<uint32_t>(loaded_segments * params.segment) * 128 + (params.plain_b == 0 ? T::kBBytes : 0);
  const int column = tile.n * T::kTileN, boxes = params.world * params.segment / params.box_rows;
  RingPlace<T::kStages> place;
  int arrived = gathers ? 0 : params.k_blocks;
  for (int block = 0; block < params.k_blocks; ++block, place.Next()) {
    if (block >= arrived) arrived = AwaitShards(shared, block);
    const int stage = place.stage, k = block * T::kKBlock;
    ptx::Wait(shared.Empty(stage), place.phase ^ 1);
    if (params.plain_b == 0) {
      if (first_lane) LoadB(&params.b, tile, shared.B(stage), shared.Full(stage), k);
    } else if constexpr (T::kAlongN) {
      for (int group = 0; group < T::kBGroups; ++group) {
        const int64_t at = column + group * 64;
        LoadPlain<B>(shared.B(stage) + static_cast<uint32_t>(group) * T::kBGroupBytes, 64,
                     params.b_data + k * params.b_pitch + at * static_cast<int64_t>(sizeof(B)),
                     params.b_pitch, params.k_bytes / static_cast<int>(sizeof(B)) - k,
                     (params.n - at) * static_cast<int64_t>(sizeof(B)));
      }
    } else {
      LoadPlain<B>(shared.B(stage), T::kTileN, params.b_data + column * params.b_pitch + int64_t{block} * 128,
                   params.b_pitch, params.n - column, params.k_bytes - block * 128);
    }
    for (int i = 0; i < boxes; ++i) {
      SkinnyBox<T> box(params, tile, i);
      ChooseHalf(params, &box.map);
      if (params.plain_a != 0 && (!gathers || box.source == params.rank)) {
        LoadPlain<A>(shared.A(stage) + box.offset, params.box_rows,
                     params.a + box.row * params.a_pitch + int64_t{block} * 128, params.a_pitch,
                     (gathers ? params.rows : params.m) - box.row, params.k_bytes - block * 128);
      } else if (first_lane && box.mine) {
        box.Load(tile, shared.A(stage), shared.Full(stage), k);
      }
    }
    ptx::ProxyFenceShared();
    __syncwarp();
    if (first_lane) ptx::ArriveExpect(shared.Full(stage), bytes);
  }
}

}  // namespace tandem::cuda
