// File: fused_launch.h
//
// The fused matmul kernel's host side: which products it takes, how its parameters are made, and its launch.
//
// Thread rule: thread-safe; calls act on the current context's device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/cuda/fused/fused_matmul.h"
#include "kernels/cuda/fused/tensor_map.h"
#include "tandem/dtype.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

// A compiled kernel, and how its tiles are walked.
struct FusedTiling {
  int tile_n = 256;
  int cluster_m = 2, cluster_n = 1;
  int ctas = 0;         // 0: one an SM. A launch on others than these is right, and shares tiles unevenly
  int band_tiles = 16;  // M-tiles that are walked together at most
  // The clusters' tiles at the end that are stored in copies directly; those before them are carried.
  int direct_tiles = std::numeric_limits<int>::max();
  int part_cost = kPartCost;  // see SplitLastWave
};

// A kernel that gives up waiting ends as if all had come, and nobody asks it. So a plan's wait until the word
// is there, or until the group's abort word says that a launch is overdue or the group broken: launches have
// deadlines of their own, of any length.
inline constexpr uint64_t kNoTimeLimit = std::numeric_limits<uint64_t>::max();
// The limit of launches without an abort word: nothing else would end them.
inline constexpr uint64_t kUnabortedLimitNs = 60'000'000'000;
constexpr uint64_t TimeLimit(const void* abort_word) {
  return abort_word == nullptr ? kUnabortedLimitNs : kNoTimeLimit;
}

// A run of pieces that may share bands: they are expected to be ready together. Over all of N, or a word
// band's columns.
struct PieceRun {
  int first = 0, count = 0;
  int word_band = -1;
};

// Device memory of launches that follow one another.
struct FusedMemory {
  void* state = nullptr;     // kFusedStateBytes, zero before the first launch
  void* partials = nullptr;  // kPartialBytes for sums of tiles that clusters share; null: none are shared
};

// All compiled variants of engines' kernels.
std::span<const FusedVariant> FusedVariants();

struct FusedMatmul {
  // By a kernel of engines, or of `choices`.
  FusedMatmul() : FusedMatmul(FusedVariants()) {}
  explicit FusedMatmul(std::span<const FusedVariant> choices) : variants(choices) {}

  std::span<const FusedVariant> variants;
  DType type = DType::kBf16, b_type = DType::kBf16,
        out_type = DType::kBf16;  // of A, B and C; A's and B's of one width
  bool exact =
      false;  // float8: sums in fp32, not as the tensor cores keep them (fast accumulation). Else always so
  bool b_along_n =
      true;  // B is [K, N] with contiguous rows; else with contiguous columns (pitch: between columns)
  int64_t rows = 0;  // of a piece, but one that has `rows` of its own
  int64_t n = 0, k = 0;
  MatrixSlices a[2], b, out[kMaxOutMaps], slots;
  std::vector<MatmulPiece>
      pieces;  // in the order in which they are run; rows 0: as many as all. Short ones end a run
  std::vector<MatmulCopy> copies;        // see MatmulPiece::first_copy
  std::vector<PieceRun> runs;            // all pieces, in order
  std::vector<const uint64_t*> arrived;  // by source, in rank order; its size is the number of sources
  int word_bands = 1;                    // of pieces with several words, for signals and sums
  int word_step = 1;                     // from one band's word to the next's, in words
  std::vector<const uint64_t*>
      closing;                   // the kernel does not end before these words have reached the launch number
  std::vector<int16_t> slot_of;  // by source: its slice of `slots`
  int position = 0;              // of the own sum among the sources
  // A row's bits depend on the row alone: one variant's sums over all of K, and the own sum rounded as the
  // sources are. No tile's K is shared then, whatever `memory` has.
  bool fixed_order = false;
  float alpha = 1.0f;
  // Factors and bias: see FusedMatmulParams; the pieces hold the rows' factors.
  const float* column_scale = nullptr;
  const void* bias = nullptr;
  const float* result_scale = nullptr;
  bool row_scales = false, column_scales = false;  // one each, else one for all
  // Scales by blocks, exact: see FusedMatmulParams.
  bool blocks = false;
  int32_t row_scale_step = 0, row_scale_block_step = 0, column_scale_step = 0, column_scale_block_step = 0;
  bool bias_is_float = false;
  uint64_t launch_number = 0;
  const uint64_t* entered = nullptr;  // see FusedMatmulParams
  const uint64_t* abort_word = nullptr;
  const uint64_t* guard_word = nullptr;  // see FusedMatmulParams
  uint64_t guard_value = 0;
  uint64_t timeout_ns = kUnabortedLimitNs;  // of a wait; TimeLimit's in plans
  FusedMemory memory;
  FusedTiling tiling;
};

inline constexpr size_t kFusedStateBytes = 8192;
static_assert((32 + kMaxPieces * kMaxWordBands + 4 * kMaxSegments) * sizeof(uint32_t) <= kFusedStateBytes);
// Tiles of 128×256, a CTA each, for as many SMs as a Hopper GPU has at most.
inline constexpr int kMaxCtas = 144;
inline constexpr size_t kPartialBytes = size_t{kMaxCtas} * kTileRows * 256 * sizeof(float);

// Tiles of 128 rows of all pieces together, each as high as the highest: bands number M-tiles in 16 bits.
// There are half as many clusters of two, but their kind is chosen later, and by the SMs too. The bound is
// the same on all ranks.
inline constexpr int64_t kMaxTilesM = std::numeric_limits<int16_t>::max();
int64_t TilesM(int64_t pieces, int64_t rows);

// Sets the number of processes with kernels on this device that may wait for each other's; 1 by default.
// Before any kernel is prepared.
void ShareSms(int engines);

// The SMs of the current context's device that are this process's share; 0 where there is no device.
int SmCount();

// The variant for `matmul`'s types, layout and sums with the given `tiling`; null if there is none.
// An exact one does for a matmul that need not be.
const FusedVariant* FusedVariantFor(const FusedMatmul& matmul, const FusedTiling& tiling);

// The variant for `matmul`'s types, layout, tiling and sums. UNIMPLEMENTED names what there is none for.
Result<const FusedVariant*> FindFusedVariant(const FusedMatmul& matmul);

// Rows of `piece`.
inline int64_t RowsOf(const FusedMatmul& matmul, const MatmulPiece& piece) {
  return piece.rows > 0 ? piece.rows : matmul.rows;
}

// Whether clusters may share tiles along K.
inline bool SharesTiles(const FusedMatmul& matmul, const FusedVariant& variant) {
  return matmul.memory.partials != nullptr && variant.splits && !matmul.fixed_order;
}

// Columns of a word band of `matmul`: whole tiles of the widest kind.
inline constexpr int kWordBandColumns = 256;
int64_t WordBandColumns(const FusedMatmul& matmul);

// The bands of `matmul`'s runs, of pieces of `units_m` clusters' tiles of rows, a short one of fewer, and
// `units_n` of columns.
std::vector<MatmulBand> CutBands(const FusedMatmul& matmul, int64_t units_m, int cluster_m, int64_t units_n);

// Makes a launch's parameters. INVALID_ARGUMENT when a matrix is not aligned, or there are too many pieces or
// bands.
Result<FusedMatmulParams> MakeFusedParams(const FusedMatmul& matmul, const FusedVariant& variant);

inline constexpr unsigned kFusedThreads = 384;
// Enqueues the kernel on `ctas` CTAs (0: one an SM): no more than have a tile, and whole clusters. `params`:
// of the kernel's own type, which may be derived from this one.
Status LaunchFused(const FusedMatmulParams& params, const FusedVariant& variant, int ctas,
                   CUstream_st* stream);

// Loads one variant into the current context, with the shared memory that it needs.
Status LoadFusedKernel(const FusedVariant& variant);

// Loads every variant into the current context: see LoadKernels (device/launch.h). UNIMPLEMENTED on a device
// that cannot run them, one that is no Hopper.
Status LoadFusedKernels();

}  // namespace tandem::cuda
