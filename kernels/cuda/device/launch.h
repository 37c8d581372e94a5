// File: launch.h
//
// The device kernels' launchers, and the plain structs that they pass. Host code that is not compiled by nvcc
// includes this alone. Every launcher enqueues on `stream` of the current context and returns; a failure is a
// Status with the runtime's code and text.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tandem/dtype.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

inline constexpr int kMaxDims = 8;
inline constexpr int kMaxSources = 18;

// The kernel does nothing if *word has reached `value` (by cyclic comparison) when it begins. Null: it runs.
struct DeviceGuard {
  const uint64_t* word;
  uint64_t value;
};

// Element offsets of one operand along the dimensions of a box, outermost first.
struct Strides {
  int64_t of[kMaxDims];
};

// A strided copy of elements of 1, 2, 4, or 8 bytes.
struct CopyLaunch {
  const void* source;
  void* destination;
  int element_bytes;
  int dims;
  int64_t count;
  int64_t extent[kMaxDims];
  Strides source_stride, destination_stride;
  DeviceGuard guard;
};
Status LaunchCopy(const CopyLaunch& copy, CUstream_st* stream);

// A fixed-order sum, or another reduction: see ReduceArgs. `contiguous`: every view is dense in the same
// order, and bias is absent.
struct ReduceLaunch {
  int sources;
  int dims;
  int64_t count;
  int64_t extent[kMaxDims];
  const void* source[kMaxSources];
  uint8_t source_type[kMaxSources];  // DType
  Strides source_stride[kMaxSources];
  void* destination;
  uint8_t type;
  Strides destination_stride;
  const void* bias;  // null: none
  uint8_t bias_type;
  Strides bias_stride;
  const float* result_scale;  // null: none
  float scale;
  uint8_t reduce_op;  // ReduceOp
  bool contiguous;
  DeviceGuard guard;
};
Status LaunchReduce(const ReduceLaunch& reduce, CUstream_st* stream);

// RMSNorm of packed rows of f32, f16 or bf16: see NormArgs.
struct NormLaunch {
  const void* sum;
  const void* weight;
  const void* residual;  // null: none
  void* residual_out;
  void* out;
  int64_t rows, columns;
  float epsilon;
  uint8_t type;  // DType
};
// The kernel reads weights and residual while the kernel before it on the stream ends. That one must have
// awaited what wrote them, as every kernel does that calls TriggerDependents behind WaitForPrimary.
Status LaunchNorm(const NormLaunch& norm, CUstream_st* stream);

// Factors of a product: null for none, else one for all (stride 0) or one each.
struct Factors {
  const void* data;
  int64_t stride;
  uint8_t type;
};

// Scales by blocks of kScaleBlock of K: row r's of block b at r's offset by a_row_stride + b *
// a_block_stride; column j's at b * b_block_stride + (first_column + j) / columns * b_stride. Null: the
// product has none.
struct BlockFactors {
  const float* a;
  const float* b;
  Strides a_row_stride;
  int64_t a_block_stride, b_block_stride, b_stride, first_column;
  int columns;
};

// C[first_row, last_row) of a product with any strides and types; see plan::MatmulStep for the order of the
// epilogue. Rows are enumerated over `row_dims` leading dimensions.
struct MatmulLaunch {
  const void* a;
  const void* b;
  void* c;
  uint8_t a_type, b_type, c_type;
  int row_dims;
  int64_t row_extent[kMaxDims];
  Strides a_row_stride, c_row_stride;
  int64_t a_column_stride, b_row_stride, b_column_stride, c_column_stride;
  int64_t first_row, last_row, n, k;
  float alpha;
  bool accumulate;
  // A row's scale lies at row * scale_a.stride plus the offset by scale_a_row_stride; one of the two is zero.
  Factors scale_a, scale_b, bias;
  BlockFactors blocks;
  Strides scale_a_row_stride;
  const float* result_scale;
};
Status LaunchMatmul(const MatmulLaunch& matmul, CUstream_st* stream);

// Copies factors of `lines` lines and `blocks` of K to out[line * line_pitch + block * block_pitch]; blocks
// up to `padded` are zero. Line l has factor number (first + l) / shared of the input, whose factors are
// enumerated over `dims`.
struct ArrangeScales {
  const float* in;
  float* out;
  int dims;
  int64_t extent[kMaxDims];
  Strides stride;
  int64_t in_block_stride, first, shared, lines, blocks, padded, line_pitch, block_pitch;
};
inline constexpr int kMaxArranged = 2;
// `count` of them in one kernel, at most kMaxArranged.
Status LaunchArrangeScales(const ArrangeScales* scales, int count, CUstream_st* stream);

// out[c * out_pitch + r] = in[r * in_pitch + c], bytes.
Status LaunchTransposeBytes(const void* in, void* out, int64_t rows, int64_t columns, int64_t in_pitch,
                            int64_t out_pitch, CUstream_st* stream);

// Fills `count` elements with random values in [-1, 1); for the trials of a product's candidates.
Status LaunchRandom(void* data, DType type, int64_t count, uint32_t seed, CUstream_st* stream);

// Keeps the stream busy for `ns` nanoseconds, so that what is enqueued meanwhile runs without gaps behind it.
Status LaunchPause(uint64_t ns, CUstream_st* stream);

// Loads every kernel of this file, and the wait for a word of the user's own, into the current context: the
// first launch of a kernel may wait for the whole context, and so would never return beside a lane that waits
// for a word.
Status LoadLocalKernels();
// The same with the collectives' kernels of engines (collective.h).
Status LoadKernels();

}  // namespace tandem::cuda
