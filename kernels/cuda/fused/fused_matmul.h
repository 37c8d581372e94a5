// File: fused_matmul.h
//
// The arguments of the fused matmul kernel at a launch, and the table of kernel variants. The kernel computes
// C = alpha·A·B by tiles of 128 rows in an order that the host chooses. It waits for rows of A that other
// GPUs deliver, stores rows of C in this or other GPUs' memory, signals complete rows there, and adds other
// GPUs' partial sums to rows that it owns.
//
// The rows of C are cut into *pieces* of equal height, the unit of waiting and signalling. A piece's rows are
// one slice (the third dimension) of the tensor maps, so that no tile writes beyond its piece. One piece may
// have fewer rows, whose maps are its own. M-tiles are numbered through all pieces in the order in which they
// are run, `tiles_m` a piece. A *band* is a range of m-tiles that is walked together over a range of N: n
// after n, all its m-tiles for each; none has a short piece's tiles that would be empty.
//
// A delivery to other GPUs may be signalled in parts, *word bands* of equally many columns with a word each,
// so that their sums need not wait for whole rows.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/collectives/client_launch.h"
#include "kernels/cuda/fused/fused_stream_k.h"

namespace tandem::cuda {

inline constexpr int kMaxBands = 64;
inline constexpr int kMaxWordBands = 16;
inline constexpr int kMaxRanks = 8;
inline constexpr int kMaxPieces = kMaxRanks;
inline constexpr int kMaxOutMaps =
    18;  // in place, staged, two for each peer; and where a piece of fewer rows is on the way
inline constexpr int kMaxClosing = kMaxRanks;
inline constexpr int kMaxCopies = 2 * kMaxRanks;
inline constexpr int kTileRows = 128;

// Clusters' tiles along N, whose numbers share a word with what else there is to say of a tile.
inline constexpr int kMaxUnitsN = 1 << 14;

// One more place that a piece of C is stored in: slice `slice` of map `map`, which begins at `to`.
struct MatmulCopy {
  uint64_t* done;  // as a piece's; of the first word band
  uint8_t* to;
  uint32_t pitch;  // bytes from row to row
  int16_t map, slice;
};

struct MatmulPiece {
  const uint64_t* ready;  // A's rows may be read once *ready >= launch number (cyclic); null: at once
  uint64_t* done;         // set to the launch number when all rows of C are written; null: nobody asks
  int16_t a_map, a_slice;
  int16_t out_map, out_slice;
  // First slice of `slots` with the other ranks' sums; -1: none are added.
  int16_t first_slot;
  int16_t finish;              // 1: bias and result scale are applied (after the sum)
  int16_t words;               // words of a copy: one, or one for each word band
  int16_t first_copy, copies;  // of FusedMatmulParams::copy: where C is stored as well
  int16_t on_the_way;          // 1: `out` is not C, but where a tile waits for its handoff to the copies
  int32_t rows;                // of this piece
  uint32_t out_pitch;          // bytes from row to row
  const uint8_t* out;          // where slice `out_slice` begins; read only for copies
  const float*
      row_scale;  // a factor for each row, or one for all (row_scale_step 0); null: none. Read once ready
};

struct MatmulBand {
  int32_t first_unit;  // clusters' tiles before this band
  int16_t first_m;     // in clusters' tiles, as m_tiles
  int16_t m_tiles;
  int16_t first_n;  // in clusters' tiles, as n_tiles
  int16_t n_tiles;
  int32_t backwards;  // walks N from its end
};

// 5 KB, by value: a kernel that reads its tensor maps from device memory takes 1.2 % longer (H200).
struct FusedMatmulParams {
  CUtensorMap a[2], b, out[kMaxOutMaps], slots;
  MatmulPiece piece[kMaxPieces];
  MatmulCopy copy[kMaxCopies];
  MatmulBand band[kMaxBands];
  // By source: its sums of the first word band are there once >= launch number. The other bands' words lie
  // word_step further each.
  const uint64_t* arrived[kMaxRanks];
  int16_t slot_of[kMaxRanks];            // of each source: its slice of `slots`, from the piece's first
  const uint64_t* closing[kMaxClosing];  // the kernel ends once all these have reached the launch number

  int32_t bands;
  int32_t units;        // clusters' tiles in all
  int32_t direct_from;  // tiles from this one on are stored in their copies directly, those before it carried
  int32_t units_n;      // clusters' tiles along N
  int32_t tiles_m;      // of a piece; a multiple of the cluster's
  int32_t k_blocks;
  int32_t closings;
  int32_t word_bands;    // 1: none
  int32_t band_units_n;  // clusters' tiles along N of a word band; 0: the tiles do not fit into them, all are
                         // told and awaited at once
  int32_t word_step;
  int32_t sources;   // other ranks whose sums are added
  int32_t position;  // of the own sum among them: before source `position`
  // 1: the own sum is rounded to C's type first, as the others have been, so that the result does not depend
  // on the rows' owner.
  int32_t rounds_own;
  float alpha;
  // C = (alpha · row_scale · column_scale · A·B + bias) · result_scale; null: none.
  const float* column_scale;
  const void* bias;  // of C's type, or float
  const float* result_scale;
  int32_t row_scale_step, column_scale_step;  // 0 or 1
  int32_t bias_is_float;
  int32_t n;  // of C
  uint64_t launch_number;
  const uint64_t* entered;     // copies may be written once *entered >= launch number (cyclic); null: at once
  const uint64_t* abort_word;  // non-zero ends every wait; null: none
  // If *guard_word has reached guard_value (cyclic) when the launch begins, the launch is cancelled. It ends
  // at once and leaves no trace, no word and no count, so that it may be launched again with the same launch
  // number. Null: no guard. All CTAs must find the same: the word is not raised while the kernel may run, and
  // its value is there before the launch's turn comes.
  const uint64_t* guard_word;
  uint64_t guard_value;
  uint64_t timeout_ns;  // the longest wait
  uint32_t* failure;    // set to 1 when a wait timed out
  // Device memory, zero before the first launch, which every launch leaves zero: one, and kMaxWordBands a
  // piece.
  uint32_t* work_counter;
  uint32_t* counters;
  // With scales by blocks of 128 of K: row_scale_step is from row to row and column_scale_step from 128
  // columns to the next, both in factors; and these are from block to block of K. Neither pointer is null
  // then.
  int32_t row_scale_block_step, column_scale_block_step;
  // The units that clusters share; drawn behind the others, a work index a segment. Then a word for each
  // computing warpgroup of a segment's cluster: not 0: its sums are there; 0 between launches. Then the
  // sums, uninitialised.
  StreamKSplit split;
  uint32_t* partial_words;
  float* partials;
  // For client-placed launches (client_fused.h), whose kernels read no `abort_word` and `timeout_ns`. A wait
  // that gives up sets *failed, and no word is written from then on.
  GroupDeviceState group_state;
};

// One compiled kernel.
struct FusedVariant {
  uint8_t type, b_type, out_type;  // DType of A, of B, of C and partial sums
  bool exact;   // sums in fp32 however wide the operands; else fp8 as the tensor cores do (fast accumulation)
  bool blocks;  // scales by blocks of 128 of K and N; exact
  bool b_along_n;  // B's rows of N elements are contiguous, else its columns of K
  int tile_n, cluster_m, cluster_n;
  bool sums;        // adds partial sums
  int k_block;      // elements
  int box_columns;  // of C, as they are stored
  size_t shared_bytes;
  const void* kernel;  // for cudaLaunchKernel
  bool splits;         // computes parts of tiles
};

}  // namespace tandem::cuda
