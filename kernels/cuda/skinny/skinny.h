// File: skinny.h
//
// The fused matmul kernel for products of so few rows that all tiles are computed at once, one a CTA: the
// arguments at a launch, and the table of variants. B's way through the memory bounds such products
// and hides no work before or after them. So the kernel moves the shards or sums itself, without a copy
// engine, while B is on its way.
//
// Forms:
//   gather      The CTAs push this rank's shard into the peers' areas by units of columns, in ascending
//               order, and write a word for each unit. Tiles begin as soon as the first columns of A
//               have come, before the whole shard is there.
//   scatter     A tile's partial sums go to their owners in the order of registers, with a word for each
//               tile. The owner adds them in fp32, in rank order.
//   all-reduce  The same; then owners send the sums to all in the same way. With two ranks and up to 256
//               rows, each rank sends all its partial sums, rounded, and both ranks add the two: see
//               SkinnyLayout::one_step.
//
// See SkinnyLayout for tiles and areas. Bindings that TMA cannot load are copied into the stages element by
// element.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "program/skinny_layout.h"

namespace tandem::cuda {

struct SkinnyParams {
  CUtensorMap own, others,
      b;               // A: of this rank (of all rows but for gather), of the peers' shards; see LoadMap
  std::byte* area[8];  // exchange areas by rank, as this rank reaches them
  uint64_t* words[8];  // by rank: this rank's words in its area
  const uint64_t* arrived[8];  // by rank: its words here
  const std::byte* a;          // for pushes, and for loads without TMA
  const std::byte* b_data;
  std::byte* c;
  int64_t a_pitch, b_pitch, c_pitch;  // bytes from row to row (B along K: from column to column)
  int64_t slot_bytes, behind_slots, fragment_bytes;
  // C = (alpha · row_scale · column_scale · A·B [+ the others'] + bias) · result_scale; null: none.
  const float* row_scale;  // of all rows; if they travel, of this rank's only
  const float* column_scale;
  const void* bias;  // of C's type, or float
  const float* result_scale;
  const uint64_t* abort_word;  // non-zero ends every wait; null: none
  uint32_t* failure;           // set to 1 when a wait timed out
  uint64_t* pushed;            // of each unit: this launch's stamp once this rank has pushed it
  const uint64_t* guard_word;  // see FusedMatmulParams: a cancelled launch leaves no trace and no stamp
  uint64_t guard_value;
  uint64_t launch_number, timeout_ns;
  float alpha;
  int32_t kind;  // SkinnyKind
  int32_t rank, world, rows, n;
  int32_t m;  // of all ranks: the last ones of an all-reduce may own fewer than `rows`, or none
  int32_t k_bytes, k_blocks, units, blocks_per_unit;
  int32_t first_units,
      cycles_per_unit;  // pushed by the computing warps; SM cycles from one unit's turn to the next one's
  int32_t segment, box_rows, tiles_m, tiles;
  int32_t row_scale_step, column_scale_step;  // 0: one for all
  int32_t row_scales_travel;                  // to the peers, with the shards
  int32_t bias_is_float;
  int32_t one_step;          // see SkinnyLayout
  int32_t rounds_own;        // as FusedMatmulParams'
  int32_t plain_a, plain_b;  // loaded without TMA
  int32_t c_vectors;         // C's rows begin at multiples of 16 bytes
};

struct SkinnyVariant {
  uint8_t type, b_type, out_type;  // DType
  bool exact, b_along_n;           // as FusedVariant's
  int tile_n, cluster_m, cluster_n;
  size_t shared_bytes;
  const void* kernel;  // for cudaLaunchKernel
};

}  // namespace tandem::cuda
