// File: steps.h
//
// What steps do, written once for rank programs and for their execution. `Place` is where bytes lie: a Ref in
// a program (program/program.h), an address in a launch (kernels/backend.h). step_fields.h lists the fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tandem/op_request.h"

namespace tandem::plan {

// Where bytes lie.
enum class Space : uint8_t {
  kOperand = 0,    // the launch's binding of slot `slot`; of a peer only if the slot is symmetric
  kWorkspace = 1,  // the group's workspace, the half of this launch's number parity
  kBulk = 2,       // the group's one bulk area, for programs of over 32 MiB
};

// A place in rank `rank`'s memory (absolute rank in the group).
struct Ref {
  Space space = Space::kWorkspace;
  uint8_t rank = 0;
  uint16_t slot = 0;    // kOperand only
  uint64_t offset = 0;  // bytes
  bool operator==(const Ref&) const = default;
};

// A strided box of elements. extent and stride have equal lengths, outermost first, strides in elements (0
// allowed for broadcast sources); no dimensions at all means one element.
template <class Place>
struct StridedView;

template <>
struct StridedView<Ref> {
  Ref ref;
  DType dtype = DType::kF32;
  std::vector<int64_t> extent;
  std::vector<int64_t> stride;
  bool operator==(const StridedView&) const = default;
};

// `data` may be null where the view has no elements.
template <>
struct StridedView<std::byte*> {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::vector<int64_t> extent;
  std::vector<int64_t> stride;
};

using View = StridedView<Ref>;

// Copies `src` to `dst`, same extents and dtype. Reads or writes a peer's memory if a Ref's rank is not the
// own one.
template <class Place>
struct Copy {
  StridedView<Place> src, dst;
  bool copy_engine = true;  // false: by SMs
};

// C = alpha * (scale_a * A) (scale_b * B) (+ C) (+ bias) (* result_scale). It is accumulated in fp32 and
// rounded once to C's dtype. A is [..., M, K], B is [K, N], C is [..., M, N], with any strides. Leading
// dimensions are folded into rows.
template <class Place>
struct Matmul {
  StridedView<Place> a, b, c;
  float alpha = 1.0f;
  bool accumulate = false;  // adds the old C
  bool has_scale_a = false, has_scale_b = false, has_bias = false, has_result_scale = false;
  StridedView<Place> scale_a;  // one element, or A's leading extents (row-wise)
  StridedView<Place> scale_b;  // one element, or N elements
  // Scales by blocks of kScaleBlock elements of K; the last block may be shorter. The product is the sum over
  // blocks b of scale_a[row, b] * scale_b[b, column] * (A·B within the block).
  // scale_a is [..., M, blocks]. scale_b is [blocks, N], a factor a column; or [blocks, n], n < N. Then
  // column j has factor (first_column + j) / kScaleBlock, and n factors reach the last column.
  bool block_scales = false;
  int32_t first_column = 0;
  StridedView<Place> bias;          // N elements
  StridedView<Place> result_scale;  // one element
  bool fast_accumulation = true;
  // Words of kChunkSignals to wait for, kAsyncInputMatmul only: rows are computed in chunks from pivot on.
  bool has_chunk_signals = false;
  StridedView<Place> chunk_signals;
  int chunk_pivot = 0;
  // The kernel does not depend on times that were measured, which differ from run to run.
  bool repeatable = false;
  // A row of C depends on the same row of A, on B, and on the types alone: not on the other rows, and not on
  // where it lies. Each element is summed over all of K in one order. Repeatable, too. fp8 is summed exactly.
  bool fixed_order = false;
};

// dst = scale * (sources[0] + sources[1] + …), in this order, or another reduction of them. It is accumulated
// in fp32 and rounded once to dst's dtype. Extents are equal. Sources may have another dtype than dst, the
// wire type.
template <class Place>
struct Reduce {
  std::vector<StridedView<Place>> sources;
  StridedView<Place> dst;
  ReduceOp reduce_op =
      ReduceOp::kSum;  // an average is a sum with a scale; others have scale 1 and no epilogue
  float scale = 1.0f;
  // Before the rounding the sum becomes (sum + bias) * result_scale, in the order of a matmul's own epilogue.
  bool has_bias = false, has_result_scale = false;
  StridedView<Place> bias;  // extents of dst's last dimension
  StridedView<Place> result_scale;
};

// RMSNorm over the last dimension; see Role::kNormWeight:
//   residual_out = sum + residual, rounded;
//   out = residual_out / sqrt(mean of its squares + epsilon) * weight.
// out is computed in fp32 from the rounded residual_out, or from sum + residual in fp32, and rounded once.
// Without a residual the sum takes the place of residual_out. All are contiguous, of one dtype. out may be
// the memory of sum, residual_out that of residual.
// With quantized, f8e4m3, out is quantised as well: quantized = out / scale, saturating. The scale is
// static_scale, or one of `scales` for each row (columns: 1) or each kScaleBlock columns of a row, which are
// made: max(greatest magnitude of out there, kLeastAmax) / 448.
template <class Place>
struct Norm {
  StridedView<Place> sum, weight, out;
  bool has_residual = false;
  StridedView<Place> residual, residual_out;
  float epsilon = 0;
  // The squares are added in an order that depends on the row's length alone. The launch fails with
  // INVALID_ARGUMENT where addresses do not allow that order.
  bool fixed_order = false;
  bool unrounded = false;  // out comes from sum + residual before that is rounded: Rounding::kOnce
  // 0: a separate kernel norms. Else the kernel of the sum before it norms, where addresses allow that, with
  // so many thread blocks a row. The sum itself is then stored nowhere.
  int row_blocks = 0;
  // With has_quantized, one of the others.
  bool has_quantized = false, has_static_scale = false, has_scales = false;
  StridedView<Place> quantized;
  StridedView<Place> static_scale;  // f32, one element
  StridedView<Place> scales;        // f32, out's leading extents and one more
};

// The least magnitude that scales of a quantised norm are made for, and the greatest of f8e4m3.
inline constexpr float kLeastAmax = 1.0f / 512, kMaxE4M3 = 448.0f;

enum class NcclKind : uint8_t {
  kAllReduce = 0,
  kAllGather = 1,
  kReduceScatter = 2,
  kBroadcast = 3,
  kReduce = 4,
  kAllToAll = 5,
  kBarrier = 6
};

// A collective of NCCL over the whole group (its stand-in on the host backend). in and out are contiguous,
// and in the rank's own memory. All-gather: out is W times in, rank-major. Reduce-scatter: in is W times out.
// All-to-all: both are W equal chunks. Broadcast: in is read on root only; reduce: out is written on root
// only.
template <class Place>
struct Nccl {
  NcclKind kind = NcclKind::kBarrier;
  StridedView<Place> in, out;
  ReduceOp reduce_op = ReduceOp::kSum;
  int root = 0;

  bool Reads(int rank) const {
    return kind != NcclKind::kBarrier && (kind != NcclKind::kBroadcast || rank == root);
  }
  bool Writes(int rank) const {
    return kind != NcclKind::kBarrier && (kind != NcclKind::kReduce || rank == root);
  }
};

// One kernel's sum: all destinations receive scale * (sources[0] + sources[1] + …), in this order, fp32
// accumulators, one rounding, or another reduction, see Reduce. One source at scale 1 is a copy. Equal
// extents, one dtype.
template <class Place>
struct KernelSum {
  std::vector<StridedView<Place>> sources, destinations;
  float scale = 1.0f;
  ReduceOp reduce_op = ReduceOp::kSum;
};

// How small data travels with its flag beside it; see PacketShape of the CUDA kernels.
enum class PacketExchange : uint8_t { kSum = 1, kGather = 2, kTwoShot = 3 };

// Pieces by rank: piece p goes from source[p] to rank p, and the piece from rank p ends in destination[p]
// (kSum: the sum of all in destination[own rank]). Views are contiguous.
template <class Place>
struct PacketPieces {
  PacketExchange exchange = PacketExchange::kSum;
  float scale = 1.0f;
  std::vector<int64_t> pieces;  // elements
  std::vector<StridedView<Place>> source, destination;
};

// The number of elements, and their bytes when packed.
template <class Place>
int64_t Elements(const StridedView<Place>& view) {
  int64_t count = 1;
  for (int64_t extent : view.extent) count *= extent;
  return count;
}
template <class Place>
uint64_t Bytes(const StridedView<Place>& view) {
  return static_cast<uint64_t>(Elements(view)) * DTypeBytes(view.dtype);
}

// The product of all extents but the last: rows of a matrix with leading dimensions. One without dimensions.
template <class Place>
int64_t LeadingRows(const StridedView<Place>& view) {
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < view.extent.size(); ++d) rows *= view.extent[d];
  return rows;
}

// True when the elements lie packed, last dimension fastest (extents of one are ignored; empty views are
// contiguous).
template <class Place>
bool IsContiguous(const StridedView<Place>& view) {
  int64_t expected = 1;
  bool packed = true;
  for (size_t d = view.extent.size(); d-- > 0;) {
    if (view.extent[d] == 0) return true;
    packed = packed && (view.extent[d] == 1 || view.stride[d] == expected);
    if (packed) expected *= view.extent[d];
  }
  return packed;
}

}  // namespace tandem::plan
