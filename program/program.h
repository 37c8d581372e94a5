// File: program.h
//
// Rank programs: what one rank executes for one launch of a plan. The planner writes them, the verifier
// proves them, engines and clients run them. Nothing here knows a backend, a process or an address.
//
// Lanes are in-order; steps of one lane run in the order of the program. Between lanes only `deps` order
// steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "program/steps.h"
#include "tandem/op_request.h"

namespace tandem::plan {

inline constexpr int kMaxWorldSize = 8;
inline constexpr int kMaxLanes = 8;
// Signal words that one writer has on one reader; the word of (writer, index) lies at writer *
// kSignalsPerWriter + index in the reader's signal area. One writer a word: a word written by rank a in
// launch n and by rank b in n + 1 could pass n's value before a has written it.
inline constexpr int kSignalsPerWriter = 512;

// Chunk signals of a matmul. All its chunks are enqueued at once, behind a wait that only the user ends: for
// each chunk a wait, a product, and kernels and copies that some products need (some six in all). CUDA takes
// about a thousand on a stream that stands still; the next one would hold the engine's only thread.
inline constexpr int kMaxChunkSignals = 128;

// Behind the signal words of a rank lie its packets, written by kLowLatency kernels only: two halves by
// launch number parity.
inline constexpr uint64_t kSignalWordBytes = uint64_t{kMaxWorldSize} * kSignalsPerWriter * 8;
inline constexpr uint64_t kPacketHalfBytes = uint64_t{2} << 20;
inline constexpr uint64_t kSignalAreaBytes = kSignalWordBytes + 2 * kPacketHalfBytes;
// Behind these, of clients on GPUs only: the dense packets, two halves by the parity of the launch's number.
// Libraries of other versions recognise another layout by the area's size: another layout has another size.
inline constexpr uint64_t kDensePacketHalfBytes = uint64_t{16} << 20;
// Then the words of clients' fused matmuls, as many as there are signal words: a kernel waits for the value 1
// in every launch, and the launch zeroes its rank's words before it meets the peers.
inline constexpr uint64_t kClientFusedWordsOffset = kSignalAreaBytes + 2 * kDensePacketHalfBytes;
inline constexpr uint64_t kClientSignalAreaBytes = kClientFusedWordsOffset + kSignalWordBytes;

using CopyStep = Copy<Ref>;
using MatmulStep = Matmul<Ref>;
using ReduceStep = Reduce<Ref>;
using NormStep = Norm<Ref>;
using NcclStep = Nccl<Ref>;

// Writes the launch's number to word (own rank, index) of `to_rank`, after all earlier steps of the lane.
struct SignalStep {
  uint8_t to_rank = 0;
  uint16_t index = 0;
};

// Holds its lane until the local word (from_rank, index) has reached the launch's number.
struct WaitStep {
  uint8_t from_rank = 0;
  uint16_t index = 0;
};

// Dimensions of an operand, and those of a copy's or a sum's views that backends walk together (a matmul's
// have one more).
inline constexpr int kMaxDims = 8;

// One send or receive of a transfer group. A send copies `src` to the peer's `dst` and signals `index`; a
// receive waits for that signal. `index` is the word (sender, index) of the receiver.
struct TransferPart {
  bool send = true;
  uint8_t peer = 0;
  uint16_t index = 0;
  View src;  // sends only
  View dst;  // sends only: in the peer's memory
};

// Sends and receives that progress together: all sends are issued before the first receive waits.
struct TransferGroupStep {
  std::vector<TransferPart> parts;
};

// The product of few rows that one kernel computes together with its collective (program/skinny_layout.h):
// the kernel's parameters in place of the expansion.
struct SkinnyStep {
  // Gather: A is this rank's shard, C all rows. Reduce-scatter: all rows of A, this rank's of C; else all of
  // both. Both are matrices; bias and result scale come after the sum. Scale of A: one element, or one for
  // each of A's rows; of a gather for each of C's, unless they travel.
  MatmulStep matmul;
  uint64_t area = 0;           // offset of the exchange area in every rank's workspace
  bool scales_travel = false;  // a gather's scales of A's rows go with the shards
  int most_ctas = 0;           // that the layout is made for
};

struct Step;

// A symmetric-memory kernel that does several steps at once. The host backend and the verifier run
// `expansion`, all of it on this step's lane in order; a GPU backend runs the kernel that `algorithm` names.
struct CollectiveStep {
  Algorithm algorithm = Algorithm::kOneShot;
  Op op = Op::kAllReduce;
  View in, out;
  ReduceOp reduce_op = ReduceOp::kSum;
  uint16_t first_signal = 0;  // of the expansion's signals: [first_signal, first_signal + signal_count)
  uint16_t signal_count = 0;
  // The kernel's blocks; 0: no kernel can do it, the expansion runs everywhere. A kernel of n blocks uses the
  // words [first_signal, first_signal + signal_count * n * 2): see KernelWordIndex. kLowLatency uses none.
  // kFused: CTAs at most, 0: one an SM.
  uint16_t blocks = 0;
  uint8_t shots = 1;   // kLowLatency all-reduce: 1 or 2
  bool dense = false;  // kLowLatency: by dense packets, which only clients have
  // kFused: the skinny kernel, whose words are [first_signal, first_signal + SkinnyLayout::words()).
  std::optional<SkinnyStep> skinny;
  std::vector<Step> expansion;
};

// Whether it is the fused matmul kernel, of many rows.
inline bool IsFusedKernel(const CollectiveStep& step) {
  return step.algorithm == Algorithm::kFused && !step.skinny;
}

// Orders other lanes only (a join or a fork).
struct NopStep {};

struct Step {
  uint16_t lane = 0;
  // Indexes of earlier steps of this program, on other lanes, that must be complete before this one starts.
  std::vector<uint32_t> deps;
  std::variant<NopStep, CopyStep, SignalStep, WaitStep, MatmulStep, ReduceStep, TransferGroupStep, NcclStep,
               CollectiveStep, NormStep>
      work;
  // A few words for traces and listings: "gemm chunk 3", "push to 2". Static text plus numbers; may be empty.
  std::string label;
};

// One rank's program for one launch.
struct RankProgram {
  int rank = 0;
  int world_size = 1;
  int lanes = 1;
  uint64_t workspace_bytes = 0;  // of one half, on every rank
  uint64_t bulk_bytes = 0;
  int signal_count = 0;  // indexes used: [0, signal_count), below kSignalsPerWriter
  std::vector<Step> steps;
};

// Whether the step signals to peers or waits for them, by itself or in a kernel.
bool MeetsPeers(const Step& step);

// The kind of a step in one word: "copy", "signal", "wait", "matmul", "reduce", "transfer_group", "nccl",
// "collective", "norm".
std::string_view StepKindName(const Step& step);

// A listing for people, one line a step: "12 lane 1 after 9,10  copy  ws[0]@2+4096 -> op3@0+0  64 KiB  # push
// to 2".
std::string ListProgram(const RankProgram& program);

}  // namespace tandem::plan
