// File: fused_store.cuh
//
// How a tile of the fused matmul leaves its CTA. Warps 1 and 2 store what the computing warpgroups have
// staged in shared memory, by TMA, so that the next tile's products wait for no store. A result that goes to
// other GPUs too takes one of two ways:
//
//   direct   from the same shared memory by the same warps. It is the fastest way, but the memory is freed
//            at the links' pace, and the next tile's sums wait for it: for tiles behind which nothing is
//            computed;
//   carried  stored in this GPU's memory; warp 3 copies it from there through registers, most likely out
//            of the L2 cache, while the next tile is computed. All CTAs together have many times the
//            links' rate.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/kernel/fused_traits.cuh"
#include "kernels/cuda/fused/kernel/fused_words.cuh"

namespace tandem::cuda {

// Puts a tile into the ring for the store warp. Two threads put the same one in, of which each has stored a
// half.
using HandoffPlace = RingPlace<kHandoffs>;
template <class T>
__device__ __forceinline__ void HandOver(const FusedShared<T>& shared, int unit, HandoffPlace* place) {
  ptx::Wait(shared.HandoffTaken(place->stage), place->phase ^ 1);
  StoreSharedOwn(shared.Handoff(place->stage), unit);
  ptx::Arrive(shared.HandoffReady(place->stage));
  place->Next();
}

// One thread a warpgroup `group` of those that compute.
template <class T, class TestHooks>
__device__ __forceinline__ void StoreTiles(const FusedMatmulParams& params, const FusedShared<T>& shared,
                                           int group, int cta) {
  WordWaiter<TestHooks> waiter{params};
  bool entered = params.entered == nullptr;
  HandoffPlace handoff;
  RingPlace<T::kStagingPlaces> box;
  int sub = 0, before = -1;  // the box's number in its tile; the place of the box before
  for (;; box.Next(), sub = sub + 1 < T::kSubTiles ? sub + 1 : 0) {
    const int buffer = box.stage;
    ptx::Wait(shared.Staged(group, buffer), box.phase);
    int unit = LoadShared(shared.StagedUnit(group, buffer));
    if (unit < 0) break;
    TilePlace<T> tile(unit, cta);
    int index = tile.m / params.tiles_m;
    const MatmulPiece& piece = params.piece[index];
    const bool carried = piece.copies > 0 && !IsDirect(unit);
    const bool last = sub == T::kSubTiles - 1 && (piece.done != nullptr || piece.copies > 0);
    if constexpr (TestHooks::kFlagBeforeData) {
      if (last && !carried) {
        CountStored<T, TestHooks>(params, index, tile.n, 1);
        TestHooks::AfterEarlyFlag(params.launch_number);
      }
    }
    const int column = tile.n * T::kTileN + sub * T::kBoxColumns;
    const int row = tile.m % params.tiles_m * kTileRows + group * 64;
    if (carried || piece.on_the_way == 0) {
      ptx::Store(&params.out[piece.out_map], shared.Staging(group, buffer), column, row, piece.out_slice);
    }
    if (!carried && piece.copies > 0) {
      if (!entered) waiter.Wait(params.entered);
      entered = true;
      for (int i = 0; i < piece.copies && !waiter.given_up; ++i) {
        const MatmulCopy& copy = params.copy[piece.first_copy + i];
        ptx::Store(&params.out[copy.map], shared.Staging(group, buffer), column, row, copy.slice);
      }
    }
    ptx::CommitStores();
    ptx::WaitStoresRead<1>();
    if (before >= 0) ptx::Arrive(shared.Drained(group, before));
    before = buffer;
    if (!last) continue;
    if (carried) {
      ptx::WaitStoresComplete();
      ptx::ProxyFence();
      HandOver(shared, unit, &handoff);
    } else if (!TestHooks::kFlagBeforeData) {
      ptx::WaitStoresComplete();
      ptx::ProxyFence();
      ptx::SystemFence();
      CountStored<T, TestHooks>(params, index, tile.n, 1);
    }
  }
  ptx::WaitStoresRead<0>();  // stores without a word are complete when the kernel is
  HandOver(shared, -1, &handoff);
}

// One lane's 16 bytes from column `column` on of `rows` rows.
template <class Out>
__device__ __forceinline__ void StoreColumn(const FusedMatmulParams& params, const MatmulPiece& piece,
                                            int column, int first_row, int rows) {
  constexpr int kInFlight = 4;  // rows: as many as the lane's registers hold
  const auto place = [&](const uint8_t* slice, uint32_t pitch, int row) {
    return slice + static_cast<size_t>(first_row + row) * pitch + static_cast<size_t>(column) * sizeof(Out);
  };
#pragma unroll 1
  for (int row = 0; row < rows; row += kInFlight) {
    uint4 data[kInFlight];
    const uint8_t* from = place(piece.out, piece.out_pitch, row);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i, from += piece.out_pitch) {
      // Past L1, which knows nothing of what TMA stores.
      if (row + i < rows) data[i] = __ldcg(reinterpret_cast<const uint4*>(from));
    }
#pragma unroll 1
    for (int copy = piece.first_copy; copy < piece.first_copy + piece.copies; ++copy) {
      const uint32_t pitch = params.copy[copy].pitch;
      auto* to = const_cast<uint8_t*>(place(params.copy[copy].to, pitch, row));
#pragma unroll
      for (int i = 0; i < kInFlight; ++i, to += pitch) {
        if (row + i < rows) *reinterpret_cast<uint4*>(to) = data[i];
      }
    }
  }
}

// Warp 3, the store warp: copies tiles from this GPU's memory to the other places of their pieces.
template <class T, class TestHooks>
__device__ __forceinline__ void StoreHandoffs(const FusedMatmulParams& params, const FusedShared<T>& shared,
                                              int cta) {
  constexpr int kElements = 16 / static_cast<int>(sizeof(typename T::Out));  // of a chunk, one lane's
  const int lane = threadIdx.x & 31;
  WordWaiter<TestHooks> waiter{params};
  bool entered = params.entered == nullptr;
  HandoffPlace handoff;
  for (;; handoff.Next()) {
    ptx::Wait(shared.HandoffReady(handoff.stage), handoff.phase);
    const int unit = LoadShared(shared.Handoff(handoff.stage));
    if (unit < 0) break;
    TilePlace<T> tile(unit, cta);
    const int index = tile.m / params.tiles_m;
    const MatmulPiece& piece = params.piece[index];
    if constexpr (TestHooks::kFlagBeforeData) {
      if (lane == 0) {
        CountStored<T, TestHooks>(params, index, tile.n, 2);
        TestHooks::AfterEarlyFlag(params.launch_number);
      }
      __syncwarp();
    }
    if (!entered) {
      if (lane == 0) waiter.Wait(params.entered);
      waiter.given_up = __shfl_sync(~0u, waiter.given_up ? 1 : 0, 0) != 0;
      entered = true;
    }
    const int first_row = tile.m % params.tiles_m * kTileRows;
    const int rows = waiter.given_up ? 0 : min(kTileRows, piece.rows - first_row);
    for (int chunk = lane; chunk < T::kTileN / kElements; chunk += 32) {  // of a row
      const int column = tile.n * T::kTileN + chunk * kElements;
      if (column < params.n) StoreColumn<typename T::Out>(params, piece, column, first_row, rows);
    }
    ptx::SystemFence();
    __syncwarp();
    if (lane != 0) continue;
    if constexpr (!TestHooks::kFlagBeforeData) CountStored<T, TestHooks>(params, index, tile.n, 2);
    ptx::Arrive(shared.HandoffTaken(handoff.stage));
  }
  // One CTA ends last, so that no lane need wait for what the peers deliver.
  if (blockIdx.x != 0) return;
  for (int i = lane; i < params.closings; i += 32) waiter.Wait(params.closing[i]);
}

}  // namespace tandem::cuda
