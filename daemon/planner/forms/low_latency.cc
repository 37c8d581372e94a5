#include "daemon/planner/forms/low_latency.h"

#include <algorithm>

#include "program/kernel_phases.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

// One shot is faster while a rank sends at most this to all its peers together. Four H200s took 6.7 us for
// 128 KiB and 7.2 by two shots, for 256 KiB 9.0 and 8.4.
constexpr uint64_t kOneShotSentBytes = 384 << 10;
// The same of dense packets. It was not measured apart: 768 KiB on four ranks.
constexpr uint64_t kOneShotSentDenseBytes = 2304 << 10;

// Pieces along `dim` are contiguous when nothing lies outside of them.
bool HasContiguousPieces(const View& view, int dim) {
  return IsContiguous(view) && std::all_of(view.extent.begin(), view.extent.begin() + dim,
                                           [](int64_t extent) { return extent == 1; });
}

}  // namespace

bool SendsDensePackets(const Problem& problem) {
  if (!problem.in_client() || !problem.group->packet_kernels || !problem.group->dense_packets) return false;
  if (problem.world_size < 2) return false;
  const auto sums_in = [](DType type) { return IsFloating(type) && !IsFloat8(type); };
  switch (problem.request->op) {
    case Op::kAllGather:
    case Op::kAllGatherMatmul: return true;
    case Op::kAllReduce:
    case Op::kReduceScatter: return sums_in(problem.operand(problem.slots.input).spec.dtype);
    case Op::kMatmulAllReduce:
    case Op::kMatmulReduceScatter: return sums_in(problem.wire);
    default: return false;
  }
}

int LowLatencyShots(const Problem& problem) {
  // Two ranks send as much by one shot as by two, and wait once.
  if (problem.world_size == 2) return 1;
  const uint64_t most = SendsDensePackets(problem) ? kOneShotSentDenseBytes : kOneShotSentBytes;
  return problem.message_bytes * static_cast<uint64_t>(problem.world_size - 1) <= most ? 1 : 2;
}

std::string WhyNoPackets(const Problem& problem) {
  const Op op = problem.request->op;
  if (!problem.group->packet_kernels) return "needs the CUDA backend's kernels";
  if (problem.world_size == 1) return "one rank has no peer to send packets to";
  if (op != Op::kAllGather && problem.combine != ReduceOp::kSum)
    return Text("packets carry sums and averages, not ", NameOf(problem.combine));
  const bool pieces = op != Op::kAllReduce;
  for (int rank = 0; rank < problem.world_size; ++rank) {
    const View in = problem.Slot(rank, problem.slots.input), out = problem.Slot(rank, problem.slots.output);
    if (!HasContiguousPieces(in, pieces ? problem.dim : 0) ||
        !HasContiguousPieces(out, pieces ? problem.dim : 0)) {
      return "its pieces must be contiguous";
    }
  }
  const bool two_shot = op == Op::kAllReduce && LowLatencyShots(problem) == 2;
  const auto shape = two_shot               ? PacketExchange::kTwoShot
                     : op == Op::kAllGather ? PacketExchange::kGather
                                            : PacketExchange::kSum;
  const uint64_t most = MaxPacketPieceBytes(shape, problem.world_size, SendsDensePackets(problem));
  const auto world = static_cast<uint64_t>(problem.world_size);
  const uint64_t bytes = problem.message_bytes;
  if (bytes == 0) return "it is empty";
  const bool one_shot_sum = op == Op::kAllReduce && !two_shot;
  const uint64_t bound = one_shot_sum ? most : most * world;
  if (bytes > bound) return Text(BytesText(bytes), " is above its bound of ", BytesText(bound));
  return {};
}

}  // namespace tandem::plan
