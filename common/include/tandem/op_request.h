// File: op_request.h
//
// `OpRequest`: one rank's request for one operation, for the client, the protocol and the planner. A request
// describes a computation; each launch binds the operands. Shapes and strides are in elements. All types are
// plain values, and the functions are pure: any thread may call them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/dtype.h"
#include "tandem/status.h"

namespace tandem {

// The operations. W is the world size, s the shard's extent along `dim`, the dimension that is gathered or
// scattered.
enum class Op : uint8_t {
  // output = reduction over ranks of input; equal shapes; see kNormWeight
  kAllReduce = 1,
  // output[dim] = W*s: the shards of all ranks in rank order
  kAllGather = 2,
  // output = chunk `rank` along dim of the reduction over ranks of input; input[dim] divisible by W
  kReduceScatter = 3,
  // C_i = gather(A, dim) * B_i for each i; the gathered A too if kGatheredA is given
  kAllGatherMatmul = 4,
  // C = chunk `rank` along dim of the sum or average over ranks of A * B
  kMatmulReduceScatter = 5,
  // C = sum or average over ranks of A * B; see kNormWeight
  kMatmulAllReduce = 6,
  // output = input of rank root
  kBroadcast = 7,
  // output, on root only = reduction over ranks of input
  kReduce = 8,
  // chunk r of output along dim = chunk `rank` of rank r's input; input[dim] divisible by W
  kAllToAll = 9,
  // a transfer group: the `transfers` of this rank progress together and complete as a whole
  kSendReceive = 10,
  // no operands
  kBarrier = 11,
  // C = A * B, local; chunk i of A's rows is used once word i of kChunkSignals is 1
  kAsyncInputMatmul = 12,
  // nothing: measures the launch path, orders streams
  kEmpty = 13,
};

// How values of several ranks become one, in rank order. Sums and products of floats have fp32 accumulators
// and one rounding; those of integers wrap. A minimum or maximum with a NaN is a NaN. Operations with a
// product or a norm take sums and averages only; averages need floats, bitwise reductions integers.
enum class ReduceOp : uint8_t {
  kSum = 0,
  kAvg = 1,
  kMin = 2,
  kMax = 3,
  kProduct = 4,
  kBitAnd = 5,
  kBitOr = 6,
  kBitXor = 7,
};

// Elements of K, and of N, that share a factor where fp8 operands have scales by blocks.
inline constexpr int64_t kScaleBlock = 128;

// The type in which partial sums travel: the output's own (one rounding each), or fp32.
enum class WireType : uint8_t { kOutput = 0, kF32 = 1 };

// For a fused operation that only the unfused composition can serve: run it, run it with a warning in the
// plan, in the daemon's log and as an event, or fail the preparation with reason UNFUSED_REFUSED.
enum class OnUnfused : uint8_t { kAllow = 0, kWarn = 1, kError = 2 };

// For a rank whose client and engine share no MPS server, so that their kernels take turns on the GPU (about
// 290 us a launch): join, join with a warning, or fail the join and later plans with kernels.
enum class OnSlowPlacement : uint8_t { kAllow = 0, kWarn = 1, kError = 2 };

// Where a plan's launches run (docs/client-placement.md). kAuto leaves it to the group's option `placement`,
// and that to the daemon's key.
enum class PlanPlacement : uint8_t {
  // CUDA: the client where it is faster; host backend: kEngine
  kAuto = 0,
  // on the engines' lanes
  kEngine = 1,
  // on the ranks' own streams
  kClient = 2,
};

// The promise about the bits of a plan's results (docs/determinism.md). What cannot keep it is refused.
enum class Determinism : uint8_t {
  kOff = 0,
  // equal inputs and an equal plan give equal bits, in every run
  kRun = 1,
  // kRun, and a row's bits depend on its own inputs, the types, the row's length and the group's size alone:
  // not on the other rows, their number, the algorithm or the placement
  kBatch = 2,
};

// The value behind a sum and a residual that a norm is computed from (docs/requests.md).
enum class Rounding : uint8_t {
  // the fp32 value that kResidualOutput is rounded from
  kOnce = 0,
  // kResidualOutput as it is rounded, as in a model's own operations
  kModel = 1,
};

// The algorithms, one name for all operations. kAuto leaves the choice to the daemon; a chosen algorithm that
// cannot run fails the preparation.
enum class Algorithm : uint8_t {
  kAuto = 0,
  kOneShot = 1,
  kTwoShot = 2,
  kHybridCubeMesh = 3,
  // packets with flags in the data; CUDA only
  kLowLatency = 4,
  // on the host backend: a stand-in
  kNccl = 5,
  // copies only, no SMs: all-gather, and reduce-scatter with one local sum
  kCopyEngine = 6,
  // kernel on symmetric memory: all-gather, reduce-scatter, broadcast, reduce, all-to-all
  kSm = 7,
  // matmul and collective one after the other
  kUnfused = 8,
  // chunk pipeline over two lanes
  kPipeline = 9,
  // S steps over n lanes
  kRing = 10,
  // matmul all-reduce, two-shot on tiles
  kTiledTwoShot = 11,
  // one fused kernel; CUDA only
  kFused = 12,
  // send and receive, barrier, local operations: their only algorithm
  kDirect = 13,
};

// The meaning of a slot to its operation. Several kB are allowed in kAllGatherMatmul; the i-th belongs to the
// i-th kC, kScaleB, kBias and kResultScale.
enum class Role : uint8_t {
  kInput = 1,
  kOutput = 2,
  kA = 3,
  kB = 4,
  kC = 5,
  kGatheredA = 6,
  // f32. One element: tensor-wise. The shard's leading dims + (1): row-wise, sharded, also where both would
  // fit. The gathered leading dims + (1): row-wise, replicated. ceil(K / 128) in place of (1): by blocks.
  kScaleA = 7,
  // f32. One element; or (1, N); or by blocks: (ceil(K / 128), ceil(N / 128) or N).
  kScaleB = 8,
  // N elements, of C's dtype or f32
  kBias = 9,
  // f32, one element
  kResultScale = 10,
  // u32 words (dtype i32) of kAsyncInputMatmul
  kChunkSignals = 11,
  // Of kAllReduce and kMatmulAllReduce. One weight for each element of the last dimension. The output is the
  // RMSNorm of the sum over that dimension, times the weights (Zhang and Sennrich, "Root Mean Square Layer
  // Normalization", 2019):
  //   residual_output = sum + residual;
  //   output = residual_output / sqrt(mean of its squares + epsilon) * weight
  // The sum and residual_output are rounded to the output's dtype. All operands have that dtype and are
  // contiguous. Each rank uses its own weights and residual.
  kNormWeight = 12,
  // The output's shape: added before the norm. Only together with kNormWeight and kResidualOutput.
  kResidual = 13,
  // The output's shape: gets the sum with the residual. May be in place with kResidual.
  kResidualOutput = 14,
  // f8e4m3, of the output's shape and contiguous: gets the norm, quantised. Only together with kNormWeight,
  // and with one of kStaticScale and kScaleOutput. The norm is rounded to the output's dtype first:
  //   quantized_output = e4m3(output / scale), saturating at +-448
  kQuantizedOutput = 15,
  // f32, one element: the scale of every element of kQuantizedOutput. Each rank uses its own.
  kStaticScale = 16,
  // f32: gets the scales of kQuantizedOutput, max(greatest magnitude, 1/512) / 448 each. The output's leading
  // dims + (1): a scale for each row. ceil(last extent / 128) in place of (1): a scale for each 128 columns
  // of a row. Strides may be any with which the leading dims are one dimension of rows.
  kScaleOutput = 17,
};

// True for the roles of operands that a launch writes.
constexpr bool IsOutput(Role role) {
  return role == Role::kOutput || role == Role::kC || role == Role::kGatheredA ||
         role == Role::kResidualOutput || role == Role::kQuantizedOutput || role == Role::kScaleOutput;
}

// True for the roles of a norm behind a sum, and of what follows the norm.
constexpr bool IsOfNorm(Role role) {
  return role == Role::kNormWeight || role == Role::kResidual || role == Role::kResidualOutput ||
         role == Role::kQuantizedOutput || role == Role::kStaticScale || role == Role::kScaleOutput;
}

// A slot's tensor. The launch binds it to memory; shape and strides stay.
struct TensorSpec {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape = {};
  // Empty: contiguous, last dimension fastest; of a PartSlot, as the larger tensor.
  std::vector<int64_t> strides = {};
  bool operator==(const TensorSpec&) const = default;
};

struct Operand {
  Role role = Role::kInput;
  TensorSpec spec = {};
  // The slot is bound to a symmetric tensor, at the same offset on all ranks, so that peers may write or read
  // it in place. All ranks must agree.
  bool symmetric = false;
  // -1: separate memory, which overlaps no slot that the launch writes. Else the earlier slot that this
  // slot is in place with: both are bound alike. In all_gather and reduce_scatter the smaller of the two is
  // this rank's part, along `dim`, of the larger one, to which both are bound (see PartSlot). Elsewhere both
  // are equal.
  int alias_of = -1;
  bool operator==(const Operand&) const = default;
};

// One send or receive of kSendReceive, between slot `slot` of this rank and the peer's matching transfer: the
// i-th send from a to b meets the i-th receive on b from a.
struct Transfer {
  bool send = true;
  int peer = 0;
  int slot = 0;
  bool operator==(const Transfer&) const = default;
};

struct OpRequest {
  Op op = Op::kBarrier;
  std::vector<Operand> operands = {};  // the index of an operand is its slot

  int dim = 0;  // gather, scatter or all-to-all dimension; negative counts from the end
  ReduceOp reduce_op = ReduceOp::kSum;
  int root = 0;  // kBroadcast, kReduce
  WireType wire = WireType::kOutput;
  float norm_epsilon = 0;                // kNormWeight: what is added to the mean of the squares
  bool fast_accumulation = true;         // fp8 on CUDA; the host backend always accumulates in fp32
  bool low_contention = false;           // copy engines only
  int chunk_pivot = 0;                   // kAsyncInputMatmul: the chunk computed first
  std::vector<Transfer> transfers = {};  // this rank's own

  Algorithm algorithm = Algorithm::kAuto;
  int steps = 0;  // ring: S, a multiple of W; 0 leaves it to the planner
  int lanes = 0;  // ring and pipeline: 1 to 8; 0 leaves it to the planner
  OnUnfused on_unfused = OnUnfused::kWarn;
  // The plan's launches leave the inputs as they are, so that a launch that failed with ABORTED may be made
  // again with the same operands. Prepare fails with FAILED_PRECONDITION, reason NOT_RESTARTABLE, for
  // operands in place.
  bool restartable = false;
  // kClient: Prepare fails with FAILED_PRECONDITION, field "placement", for a plan that the client cannot
  // run.
  PlanPlacement placement = PlanPlacement::kAuto;
  // The plan keeps the stronger one of this and the group's option `determinism`. Prepare fails with
  // FAILED_PRECONDITION, reason DETERMINISM_REFUSED, for an operation that cannot keep it.
  Determinism determinism = Determinism::kOff;
  // With kNormWeight and kResidual; elsewhere without effect.
  Rounding rounding = Rounding::kOnce;
  // A request that no tuning table has a time for, and that leaves the algorithm open: Prepare times the few
  // algorithms that are predicted fastest, on memory of its own, and tandemd keeps the times
  // (docs/tuning.md). The GPUs should be idle. All ranks alike.
  bool autotune = false;
  // Not 0: a family. Its launches have any number of rows from 0 to max_rows (LaunchOptions::rows). Rows are
  // the first dimension of the input, or of A. All operands that hold rows follow in proportion. The other
  // extents and all strides stay as they are here. The extents of rows here may be those of any number of
  // rows: at least one, with row-wise scales two. Families run on the ranks' own streams.
  int64_t max_rows = 0;
  bool operator==(const OpRequest&) const = default;
};

// Names as they appear in tools and protocol: "all_gather_matmul", "two_shot", "gathered_a", "avg", … and
// back.
std::string_view OpName(Op op);
std::string_view AlgorithmName(Algorithm algorithm);
std::string_view RoleName(Role role);
Result<Op> ParseOp(std::string_view name);
Result<Algorithm> ParseAlgorithm(std::string_view name);

// The number of elements of a shape; INVALID_ARGUMENT on a negative extent or an overflow of 2^62 bytes at 8
// B each.
Result<int64_t> ElementCount(const std::vector<int64_t>& shape);
// Contiguous strides of a shape, last dimension fastest.
std::vector<int64_t> ContiguousStrides(const std::vector<int64_t>& shape);
// The bytes from a tensor's first element to the end of the last one, strides considered. INVALID_ARGUMENT:
// they overflow.
Result<int64_t> SpanBytes(const TensorSpec& spec);

// The request for the sum alone, without the norm behind it and its operands. Later slots move up.
OpRequest WithoutNorm(const OpRequest& request);

// The slot of an all_gather or reduce_scatter in place that is one rank's part of the other slot's memory:
// the input of all_gather, the output of reduce_scatter. NCCL has the same rule (sendbuff == recvbuff + rank
// * count, and the reverse). -1 if there is none. The request need not have been checked.
int PartSlot(const OpRequest& request);
// A slot's strides in elements, also where its spec leaves them out: contiguous ones; of the PartSlot, the
// larger tensor's.
std::vector<int64_t> StridesOf(const OpRequest& request, int slot);
// The bytes that a slot's binding must have: its tensor's span, or that of the largest of the slots that are
// the same memory. The errors of SpanBytes.
Result<int64_t> BoundBytes(const OpRequest& request, int slot);

}  // namespace tandem
