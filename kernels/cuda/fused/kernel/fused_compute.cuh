// File: fused_compute.cuh
//
// The two computing warpgroups of the fused matmul kernel. Between a tile's last product and the next tile's
// first the tensor cores work for the other warpgroup at most, which is there as well most of the time. So
// the code there only scales, adds and rounds, and what it reads is asked for beside the last products. Where
// registers have room for rounded results, not even that holds up the tensor cores: ComputeByHalves.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/fused_matmul.h"
#include "kernels/cuda/fused/kernel/fused_block_scales.cuh"
#include "kernels/cuda/fused/kernel/fused_epilogue.cuh"
#include "kernels/cuda/fused/kernel/fused_exact_mainloop.cuh"
#include "kernels/cuda/fused/kernel/fused_halves.cuh"
#include "kernels/cuda/fused/kernel/fused_mainloop.cuh"
#include "kernels/cuda/fused/kernel/fused_partials.cuh"
#include "kernels/cuda/fused/kernel/fused_staging.cuh"
#include "kernels/cuda/fused/kernel/fused_traits.cuh"
#include "kernels/cuda/fused/kernel/ptx.cuh"

namespace tandem::cuda {

// The tile that a warpgroup computes next.
struct NextTile {
  int unit;  // see TilePlace; -1: there are no more
  TilePart part;
};

// One thread of a computing warpgroup: where it stands in the ring of stages and in its tiles.
template <class T>
class ComputeThread {
 public:
  RingPlace<T::kStages> place;

  // `group`: rows [64 group, +64) of every tile.
  __device__ __forceinline__ ComputeThread(const FusedMatmulParams& params, const FusedShared<T>& shared,
                                           int group)
      : params_(params),
        shared_(shared),
        thread_(threadIdx.x & 127),
        group_(group),
        empty_(T::kCluster == 2 ? ptx::MapToCta(shared.Empty(0), static_cast<uint32_t>(thread_) & 1)
                                : shared.Empty(0)) {}

  // A stage is free when the computing warpgroups of all CTAs that it is loaded for have read it.
  __device__ __forceinline__ void Release(int stage) const {
    const uint32_t empty = empty_ + static_cast<uint32_t>(stage) * 8;
    if constexpr (T::kCluster == 2) {
      if (thread_ < 2) ptx::ArriveRemote(empty);
    } else {
      if (thread_ == 0) ptx::Arrive(empty);
    }
  }
  // Waits for the next stage, which is a tile's first: the tile.
  __device__ __forceinline__ NextTile AwaitTile() {
    ptx::Wait(shared_.Full(place.stage), place.phase);
    return Next();
  }
  // The tile whose first stage the next one is; it is full.
  __device__ __forceinline__ NextTile Next() {
    const int2 tile = LoadSharedPair(shared_.TileWord(static_cast<int>(taken_++ % kTileWords)));
    return {tile.x, {tile.y}};
  }
  // Stages of a tile.
  __device__ __forceinline__ int BlocksOf(TilePart part) const {
    return !T::kSplits || part.IsWhole() ? KBlocks<T>(params_) : part.Blocks();
  }
  // Whether the next stage is full; the whole warpgroup alike.
  __device__ __forceinline__ bool IsNextFull() const {
    return !ptx::AnyOfWarpgroup(group_ + 1, !ptx::Test(shared_.Full(place.stage), place.phase));
  }
  // The thread's first row of a tile, within its piece.
  __device__ __forceinline__ int RowOf(const TilePlace<T>& tile) const {
    return tile.m % params_.tiles_m * kTileRows + group_ * 64 + (thread_ >> 5) * 16 + ((thread_ & 31) >> 2);
  }
  __device__ __forceinline__ int FirstColumnOf(const TilePlace<T>& tile) const {
    return tile.n * T::kTileN + (thread_ & 3) * 2;
  }

 private:
  const FusedMatmulParams& params_;
  const FusedShared<T>& shared_;
  int thread_, group_;
  uint32_t taken_ = 0;  // tiles
  uint32_t empty_;      // the first stage's barrier, of the CTA that this thread signals to
};

// The use of a tile's sums, or of a part's.
template <class T, class TestHooks>
class TileEnd {
 public:
  bool sums = false;  // peers' sums are added, which come through the ring of stages

  __device__ __forceinline__ TileEnd(const FusedMatmulParams& params, const FusedShared<T>& shared, int group,
                                     int cta)
      : params_(params), shared_(shared), group_(group), epilogue_(params), partials_(params, group, cta) {}

  // Asks for what the tile's end reads.
  __device__ __forceinline__ void Begin(const ComputeThread<T>& thread, const TilePlace<T>& tile,
                                        TilePart part) {
    part_ = part;
    const MatmulPiece& piece = params_.piece[tile.m / params_.tiles_m];
    sums = T::kSums && piece.first_slot >= 0;
    finish_ = epilogue_.Finishes(piece);
    epilogue_.Begin(piece, thread.RowOf(tile), thread.FirstColumnOf(tile));
  }

  // Instead of Finish, of a part whose tile another cluster finishes: leaves its sums from box `kFirstBox`
  // on. When all are left, TellLeft.
  template <int kFirstBox, int kCount>
  __device__ __forceinline__ void Leave(const float (&values)[kCount]) {
    left_ = part_.Segment();
    if constexpr (TestHooks::kFlagBeforeData && kFirstBox == 0) partials_.TellEarly(left_);
    partials_.template Leave<kFirstBox * BoxLane<T>::kValues>(left_, values);
  }
  // Says what has been left, if it has not been said.
  __device__ __forceinline__ void TellLeft() {
    if (left_ < 0) return;
    if constexpr (!TestHooks::kFlagBeforeData) partials_.Tell(left_);
    left_ = -1;
  }

  // Ends `values`, the boxes from `kFirstBox` on, and gives each to leave(box, its values).
  template <int kFirstBox, int kCount, class Leave>
  __device__ __forceinline__ void Finish(const float (&values)[kCount], ComputeThread<T>& thread,
                                         const BoxLane<T>& lane, const Leave& leave) {
    // The common ways have code of their own: where ways meet again, the compiler moves all values.
    const bool plain = !sums && !finish_ && (!T::kSplits || part_.PeerCtas() == 0);
    if (plain && !epilogue_.by_column) {
      EndBoxes<kFirstBox>(
          values, [](auto&, int) {}, [](auto&, int) {}, leave);
    } else if (Epilogue<T>::kScales && plain) {
      EndBoxes<kFirstBox>(
          values, [](auto&, int) {},
          [&](auto& c, int box) __attribute__((always_inline)) { epilogue_.ScaleColumns(c, box); }, leave);
    } else {
      FinishAny<kFirstBox>(values, thread, lane, leave);
    }
  }
  // The same for any tile.
  template <int kFirstBox, int kCount, class Leave>
  __device__ __forceinline__ void FinishAny(const float (&values)[kCount], ComputeThread<T>& thread,
                                            const BoxLane<T>& lane, const Leave& leave) {
    const auto add_partials = [&](auto& own, int) __attribute__((always_inline)) {
      if constexpr (T::kSplits) {
        if (part_.PeerCtas() > 0) partials_.Add(shared_, part_.PeerCtas(), own, thread);
      }
    };
    const auto rest = [&](auto& c, int box) __attribute__((always_inline)) {
      if (epilogue_.by_column) epilogue_.ScaleColumns(c, box);
      if constexpr (T::kSums) {
        if (sums) AddSources(c, thread, lane);
      }
      if (finish_) epilogue_.Finish(c, box);
    };
    EndBoxes<kFirstBox>(values, add_partials, rest, leave);
  }

 private:
  // `before` and `then`: what precedes and follows the rows' factors.
  template <int kFirstBox, int kCount, class Before, class Then, class Leave>
  __device__ __forceinline__ void EndBoxes(const float (&values)[kCount], const Before& before,
                                           const Then& then, const Leave& leave) const {
    constexpr int kValues = BoxLane<T>::kValues;
    static_assert(kCount % kValues == 0);
#pragma unroll
    for (int i = 0; i < kCount / kValues; ++i) {
      // Into other registers: the tensor cores' are theirs, and what else writes them holds up all products.
      float c[kValues];
#pragma unroll
      for (int j = 0; j < kValues; ++j) c[j] = values[i * kValues + j];
      before(c, kFirstBox + i);
      epilogue_.ScaleRows(c);
      then(c, kFirstBox + i);
      leave(kFirstBox + i, c);
    }
  }

  // Adds to a box's values `c` what other GPUs computed of it, in the order of the ranks. (−0 is what adds
  // nothing to any value, be it −0.)
  __device__ __forceinline__ void AddSources(float (&c)[BoxLane<T>::kValues], ComputeThread<T>& thread,
                                             const BoxLane<T>& lane) const {
    constexpr int kValues = BoxLane<T>::kValues;
    if constexpr (sizeof(typename T::Out) == 2) {
      if (params_.rounds_own != 0) RoundAsSent(c);
    }
    float total[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) total[i] = params_.position == 0 ? c[i] : -0.0f;
    for (int source = 0; source < params_.sources; ++source) {
      RingPlace<T::kStages>& place = thread.place;
      const int in_stage = source % T::kSumsPerStage;
      if (in_stage == 0) ptx::Wait(shared_.Full(place.stage), place.phase);
      const uint32_t from = shared_.A(place.stage) + static_cast<uint32_t>(in_stage) * T::kSumBytes +
                            static_cast<uint32_t>(group_) * T::kBoxBytes;
      lane.Add(from, total);
      if (source + 1 == params_.position) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) total[i] += c[i];
      }
      if (in_stage == T::kSumsPerStage - 1 || source == params_.sources - 1) {
        asm volatile("bar.sync %0, 128;" ::"r"(group_ + 1) : "memory");
        thread.Release(place.stage);
        place.Next();
      }
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) c[i] = total[i];
  }

  // As a peer would have the values.
  __device__ __forceinline__ void RoundAsSent(float (&c)[BoxLane<T>::kValues]) const {
#pragma unroll
    for (int i = 0; i < BoxLane<T>::kValues; i += 2) {
      const float2 pair = Unpack<typename T::Out>(Pack<typename T::Out>(c[i], c[i + 1]));
      c[i] = pair.x;
      c[i + 1] = pair.y;
    }
  }

  const FusedMatmulParams& params_;
  const FusedShared<T>& shared_;
  int group_;
  bool finish_ = false;
  TilePart part_ = {0};
  int left_ = -1;  // the segment whose sums have been left and not announced; -1: none
  Epilogue<T> epilogue_;
  PartialSums<T, TestHooks> partials_;
};

// For sums that leave no registers for rounded results: a tile's are staged at its end, before the next
// tile's products.
template <class T, class TestHooks>
__device__ __forceinline__ void ComputeAtOnce(const FusedMatmulParams& params, const FusedShared<T>& shared,
                                              int group, int cta) {
  ComputeThread<T> thread(params, shared, group);
  TileEnd<T, TestHooks> end(params, shared, group, cta);
  BoxStager<T> stager(shared, group, threadIdx.x & 127);
  const auto release = [&](int stage) __attribute__((always_inline)) { thread.Release(stage); };
  float d[T::kTileN / 2];
  NextTile tile = thread.AwaitTile();
  while (tile.unit >= 0) {
    const int k_blocks = thread.BlocksOf(tile.part);
    const auto begin_end = [&]() __attribute__((always_inline)) {
      end.Begin(thread, TilePlace<T>(tile.unit, cta), tile.part);
    };
    if constexpr (T::kBlocks) {
      const TilePlace<T> at(tile.unit, cta);
      const BlockScaledSums<T> scaled(params, params.piece[at.m / params.tiles_m], thread.RowOf(at),
                                      at.n * T::kTileN);
      ExactMainloop<T>(shared, group, k_blocks, thread.place, d, release, scaled);
      begin_end();
    } else if constexpr (T::kExact) {
      ExactMainloop<T>(shared, group, k_blocks, thread.place, d, release, PlainSums<T>());
      begin_end();
    } else {
      FastMainloop<T>(shared, group, k_blocks, thread.place, d, release, begin_end);
    }
    if (T::kSplits && tile.part.Leaves()) {
      end.template Leave<0>(d);
      end.TellLeft();
    } else {
      end.template Finish<0>(
          d, thread, stager.place, [&](int, const auto& c) __attribute__((always_inline)) {
            typename BoxLane<T>::Packed packed;
            BoxLane<T>::Round(c, packed);
            stager.Stage(packed, tile.unit);
          });
    }
    tile = thread.AwaitTile();
  }
  stager.End();
}

// A tile's results wait in registers, and are staged beside the next tile's products; one half's are rounded
// while the other one, or the next tile's first half, is multiplied.
template <class T, class TestHooks>
__device__ __forceinline__ void ComputeByHalves(const FusedMatmulParams& params, const FusedShared<T>& shared,
                                                int group, int cta) {
  // Stages between two boxes of the tile before. One a stage gained less: the box before has not left yet.
  constexpr int kStagesABox = 3;
  constexpr NextTile kUnknown = {-2, {0}};
  // Sums that another cluster adds leave beside products as rounded ones do; where there are scales, all
  // tiles paid for that (0.3 %).
  constexpr bool kLeavesBeside = !Epilogue<T>::kScales;
  ComputeThread<T> thread(params, shared, group);
  TileEnd<T, TestHooks> end(params, shared, group, cta);
  BoxStager<T> stager(shared, group, threadIdx.x & 127);
  HalvedProducts<T> products(shared, group);
  HeldTile<T> held;
  const auto hold = [&](int box, const auto& c) __attribute__((always_inline)) {
    BoxLane<T>::Round(c, held.box[box]);
  };
  RingPlace<T::kStages>& place = thread.place;
  int last = 0;  // the stage whose products were started last

  NextTile tile = thread.AwaitTile();
  if (tile.unit >= 0) products.template StartFirst<true>(place.stage);
  while (tile.unit >= 0) {
    const int last_block = thread.BlocksOf(tile.part) - 1;
    products.template StartSecond<true>(place.stage);
    last = place.stage;
    place.Next();
    const auto multiply = [&]() __attribute__((always_inline)) {
      ptx::Wait(shared.Full(place.stage), place.phase);
      products.template StartFirst<false>(place.stage);
      products.template StartSecond<false>(place.stage);
      ptx::WgmmaWait<2>();
      thread.Release(last);
      last = place.stage;
      place.Next();
    };
    int block = 1;
#pragma unroll
    for (int box = 0; box < T::kSubTiles; ++box) {
#pragma unroll 1
      for (const int stop = min(last_block, block + kStagesABox); block < stop; ++block) multiply();
      held.Stage(stager, box);
      if (box == 0) end.TellLeft();
    }
#pragma unroll 1
    for (; block < last_block; ++block) multiply();
    // ptxas takes a half for done while the other one is not only where both began behind such a wait. It
    // costs little: the other warpgroup's products are under way.
    ptx::WgmmaWait<0>();
    thread.Release(last);
    ptx::Wait(shared.Full(place.stage), place.phase);
    products.template StartFirst<false>(place.stage);
    products.template StartSecond<false>(place.stage);
    last = place.stage;
    place.Next();

    end.Begin(thread, TilePlace<T>(tile.unit, cta), tile.part);
    NextTile next = kUnknown;
    if (!end.sums && (kLeavesBeside ? tile.part.PeerCtas() == 0 : tile.part.IsWhole())) {
      const bool leaves = kLeavesBeside && tile.part.Leaves();
      ptx::WgmmaWait<1>();
      ptx::WgmmaSettled(products.first);
      if (leaves) {
        end.template Leave<0>(products.first);
      } else {
        end.template Finish<0>(products.first, thread, stager.place, hold);
      }
      if (thread.IsNextFull()) next = thread.Next();
      if (next.unit >= 0) {
        products.template StartFirst<true>(place.stage);
        ptx::WgmmaWait<1>();
      } else {
        ptx::WgmmaWait<0>();
      }
      ptx::WgmmaSettled(products.second);
      thread.Release(last);
      if (leaves) {
        end.template Leave<HalvedProducts<T>::kFirstBoxes>(products.second);
      } else {
        end.template Finish<HalvedProducts<T>::kFirstBoxes>(products.second, thread, stager.place, hold);
      }
      held.unit = leaves ? -1 : tile.unit;
    } else {
      ptx::WgmmaWait<0>();
      ptx::WgmmaSettled(products.first);
      ptx::WgmmaSettled(products.second);
      thread.Release(last);
      // Behind a shared tile there is most often nothing to stage it beside.
      const bool at_once = tile.part.PeerCtas() > 0;
      held.unit = tile.unit;
      const auto keep = [&](int box, const auto& c) __attribute__((always_inline)) {
        hold(box, c);
        if (at_once) held.Stage(stager, box);
      };
      if (tile.part.Leaves()) {  // peers' sums are for who finishes it
        end.template Leave<0>(products.first);
        end.template Leave<HalvedProducts<T>::kFirstBoxes>(products.second);
        held.unit = -1;
      } else {
        end.template FinishAny<0>(products.first, thread, stager.place, keep);
        end.template FinishAny<HalvedProducts<T>::kFirstBoxes>(products.second, thread, stager.place, keep);
        if (at_once) held.unit = -1;
      }
      if (thread.IsNextFull()) next = thread.Next();
      if (next.unit >= 0) products.template StartFirst<true>(place.stage);
    }
    if (next.unit < 0) {
      // Nothing to multiply: the next tile may wait for a peer, who may wait for these.
      end.TellLeft();
      held.StageAll(stager);
      if (next.unit == kUnknown.unit) next = thread.AwaitTile();
      if (next.unit >= 0) products.template StartFirst<true>(place.stage);
    }
    tile = next;
  }
  ptx::WgmmaWait<0>();  // nothing is under way, which the compiler does not know
  stager.End();
}

// Warpgroup `group` of those that compute: rows [64 group, +64) of every tile.
template <class T, class TestHooks>
__device__ __forceinline__ void Compute(const FusedMatmulParams& params, const FusedShared<T>& shared,
                                        int group, int cta) {
  if constexpr (T::kHolds) {
    ComputeByHalves<T, TestHooks>(params, shared, group, cta);
  } else {
    ComputeAtOnce<T, TestHooks>(params, shared, group, cta);
  }
}

}  // namespace tandem::cuda
