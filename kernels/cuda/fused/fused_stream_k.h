// File: fused_stream_k.h
//
// Shares the tiles of a last wave that would leave clusters idle among all clusters: along K, in *segments*
// of equally many stages, one for each cluster (Stream-K: Osama et al., "Stream-K: Work-centric Parallel
// Decomposition for Dense Matrix-Matrix Multiplication on the GPU", 2023; here only for the last wave). The
// stages of the shared units (clusters' tiles), one unit behind the other, are cut into segments. So a
// segment holds a *part* of one unit, or the end of one and the beginning of the next. The cluster with a
// unit's last stages *finishes* the unit: it adds the sums that peer clusters leave in memory.
//
// Clusters draw segments in order and finish nothing before they have stored the sums that others wait for. A
// cluster waits only for clusters that have drawn before it. So however few clusters run at once, none waits
// for a cluster that has not begun.
//
// The assignment of parts depends on the plan alone, and sums are added in the order of K: the same bits on
// every run.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TANDEM_HOST_DEVICE __host__ __device__
#else
#define TANDEM_HOST_DEVICE
#endif

namespace tandem::cuda {

// How one product's tiles are shared.
struct StreamKSplit {
  int32_t from = 0;      // units from this one on are shared
  int32_t units = 0;     // so many; 0: none
  int32_t k_blocks = 0;  // stages of each, even: elements beyond K are zero
  int32_t blocks = 0;    // stages of a segment, even, and no more than those of a unit
  int32_t segments = 0;
};

// A cluster's part of a unit: `blocks` stages from `first_block` on, two at the least.
struct StreamKPart {
  int32_t unit, first_block, blocks;
  int32_t peer_ctas;  // who finishes the unit: the segments before its own that have the unit's other stages
  bool finishes;      // else its sums are left for who does
};

// Segments that a unit may be cut into: an area and words each (fused_partials.cuh), and numbers that fit a
// word.
inline constexpr int kMaxSegments = 256;
inline constexpr int kMaxPeerCtas = 7;

// The parts of segment `segment`, in the order in which they are to be computed; how many.
TANDEM_HOST_DEVICE inline int PartsOf(const StreamKSplit& split, int segment, StreamKPart (&parts)[2]) {
  const int begin = segment * split.blocks;
  const int all = split.units * split.k_blocks;
  const int end = begin + split.blocks < all ? begin + split.blocks : all;
  const int first = begin / split.k_blocks, last = (end - 1) / split.k_blocks;
  const auto part = [&](int unit, int from, int to) {
    const int unit_begin = unit * split.k_blocks;
    StreamKPart of = {};
    of.unit = split.from + unit;
    of.first_block = from - unit_begin;
    of.blocks = to - from;
    of.finishes = to == unit_begin + split.k_blocks;
    of.peer_ctas = of.finishes ? segment - unit_begin / split.blocks : 0;
    return of;
  };
  if (first == last) {
    parts[0] = part(first, begin, end);
    return 1;
  }
  parts[0] = part(last, last * split.k_blocks,
                  end);  // someone waits for it, or nobody: in either case it waits for nobody
  parts[1] = part(first, begin, last * split.k_blocks);
  return 2;
}

// The cost of sharing: sums through memory, a wait, and one more beginning and end of a tile. In stages of
// 256 columns (H200).
inline constexpr int kPartCost = 12;

// How `units` of `k_blocks` stages, their tiles `tile_n` columns wide, are shared by `clusters`; nothing is
// where that would not save more than `cost`.
StreamKSplit SplitLastWave(int64_t units, int64_t clusters, int64_t k_blocks, int tile_n,
                           int cost = kPartCost);

// How long so many units take: in tiles one after another.
double WavesOf(int64_t units, int64_t clusters, int64_t k_blocks, int tile_n, bool splits);

}  // namespace tandem::cuda
