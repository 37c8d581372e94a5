#include "daemon/planner/choice/matmul_collective.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "daemon/planner/choice/bounds.h"
#include "daemon/planner/choice/choice.h"
#include "daemon/planner/forms/low_latency.h"
#include "program/kernel_phases.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

// Up to here packets with launch numbers were faster than kernels with separate flags (bounds.cc).
constexpr uint64_t kMaxPacketBytes = uint64_t{256} << 10;

// The bounds of the collective beside the product.
Bounds CollectiveBounds(const Problem& problem) {
  const Op fused = problem.request->op;
  const Op op = fused == Op::kAllGatherMatmul       ? Op::kAllGather
                : fused == Op::kMatmulReduceScatter ? Op::kReduceScatter
                                                    : Op::kAllReduce;
  return BoundsOf(op, problem.world_size, problem.topology_class, problem.group->packet_kernels,
                  SendsDensePackets(problem));
}

// The kernel of a collective whose pieces are `piece_bytes` each.
Algorithm KernelOf(const Problem& problem, PacketExchange shape, uint64_t piece_bytes, Algorithm otherwise) {
  const bool dense = SendsDensePackets(problem);
  const uint64_t most =
      dense ? std::max(kMaxPacketBytes, CollectiveBounds(problem).low_latency) : kMaxPacketBytes;
  const bool packets =
      problem.message_bytes <= most && piece_bytes <= MaxPacketPieceBytes(shape, problem.world_size, dense);
  return packets ? Algorithm::kLowLatency : otherwise;
}

// kLowLatency's.
Algorithm SmallKernel(const Problem& problem) {
  const uint64_t bytes = problem.message_bytes;
  const auto parts = static_cast<uint64_t>(problem.world_size);
  switch (problem.request->op) {
    case Op::kAllGatherMatmul:
      return KernelOf(problem, PacketExchange::kGather, bytes / parts, Algorithm::kSm);
    case Op::kMatmulReduceScatter:
      return KernelOf(problem, PacketExchange::kSum, bytes / parts, Algorithm::kSm);
    default: break;
  }
  // Two shots cut at multiples of 16 bytes.
  const Algorithm kernel =
      LowLatencyShots(problem) == 1
          ? KernelOf(problem, PacketExchange::kSum, bytes, Algorithm::kTwoShot)
          : KernelOf(problem, PacketExchange::kTwoShot, bytes / parts + 16, Algorithm::kTwoShot);
  return kernel == Algorithm::kTwoShot && bytes <= CollectiveBounds(problem).one_shot ? Algorithm::kOneShot
                                                                                      : kernel;
}

Operand Packed(Role role, DType dtype, std::vector<int64_t> shape) {
  Operand operand;
  operand.role = role;
  operand.spec.dtype = dtype;
  operand.spec.shape = std::move(shape);
  return operand;
}

// The collective as separate requests. Pieces lie rank-major, so the first dimension stands for whichever
// it is.
std::vector<OpRequest> RequestsBeside(const Problem& problem) {
  OpRequest plain;
  plain.reduce_op = problem.request->reduce_op;
  plain.determinism = problem.request->determinism;
  const Op op = problem.request->op;
  std::vector<int64_t> piece = problem.operand(problem.slots.c[0]).spec.shape, whole;
  DType type = problem.wire;
  if (op == Op::kAllGatherMatmul) {
    plain.op = Op::kAllGather;
    plain.reduce_op = ReduceOp::kSum;
    piece = problem.operand(problem.slots.a).spec.shape;
    type = problem.operand(problem.slots.a).spec.dtype;
  } else {
    plain.op = op == Op::kMatmulReduceScatter ? Op::kReduceScatter : Op::kAllReduce;
  }
  whole = piece;
  if (plain.op != Op::kAllReduce) whole[0] *= problem.world_size;
  const bool gathers = plain.op == Op::kAllGather;
  plain.operands = {Packed(Role::kInput, type, plain.op == Op::kReduceScatter ? whole : piece),
                    Packed(Role::kOutput, type, gathers ? whole : piece)};
  std::vector<OpRequest> requests(static_cast<size_t>(problem.world_size), plain);
  for (size_t r = 0; r < requests.size() && gathers; ++r) {
    requests[r].operands[0].spec.strides =
        problem.requests[r].operands[static_cast<size_t>(problem.slots.a)].spec.strides;
  }
  return requests;
}

// Algorithms that are one kernel, beside a product.
bool IsKernel(Algorithm algorithm) {
  return algorithm == Algorithm::kLowLatency || algorithm == Algorithm::kSm ||
         algorithm == Algorithm::kOneShot || algorithm == Algorithm::kTwoShot;
}

MatmulCollective Best(const Problem& problem) {
  const std::vector<OpRequest> requests = RequestsBeside(problem);
  const Result<Problem> plain = MakeProblem(requests, *problem.group);
  if (!plain.ok()) return {Algorithm::kAuto, plain.status().message(), 0};
  const Result<Choice> choice = Choose(*plain);
  if (!choice.ok()) return {Algorithm::kAuto, choice.status().message(), 0};
  // `algorithm` in the choice's place, or why nothing can be.
  const auto instead = [&choice](Algorithm algorithm, const std::string& reason,
                                 const std::string& otherwise) -> MatmulCollective {
    for (const RefusedAlgorithm& refused : choice->refused) {
      if (refused.algorithm == algorithm && refused.predicted_us > 0)
        return {algorithm, reason, refused.predicted_us};
    }
    return {Algorithm::kAuto, otherwise, 0};
  };
  if (problem.in_client() && !IsKernel(choice->algorithm)) {
    const bool all_reduce = problem.request->op == Op::kMatmulAllReduce;
    return instead(all_reduce ? Algorithm::kTwoShot : Algorithm::kSm,
                   Text("the client launches kernels only, and ", AlgorithmName(choice->algorithm),
                        " would be the choice"),
                   "the client launches kernels only, and no kernel can run here");
  }
  if (const Algorithm beside = FasterBesideProduct(*plain); beside != Algorithm::kAuto &&
                                                            beside != choice->algorithm &&
                                                            (IsKernel(beside) || !problem.in_client())) {
    MatmulCollective measured = instead(beside, "as measured beside a product of this size", "");
    if (measured.algorithm == beside) return measured;
  }
  if (choice->algorithm == Algorithm::kHybridCubeMesh) {
    MatmulCollective nccl =
        instead(Algorithm::kNccl, "the hybrid cube mesh's kernel runs without a product beside it only", "");
    if (nccl.algorithm == Algorithm::kNccl) return nccl;
    const std::string& no_nccl = problem.group->no_nccl;
    return instead(Algorithm::kTwoShot,
                   no_nccl + ", and the hybrid cube mesh's kernel runs without a product beside it only",
                   no_nccl + ", and a hybrid cube mesh has no other all-reduce beside a product");
  }
  if (choice->algorithm == Algorithm::kLowLatency && problem.scales_travel()) {
    return instead(Algorithm::kSm, "A's scales travel too, and packets carry one tensor",
                   "A's scales travel too, packets carry one tensor, and no other kernel gathers here");
  }
  return {choice->algorithm, choice->reason, choice->predicted_us};
}

}  // namespace

MatmulCollective CollectiveBeside(const Problem& problem, Algorithm algorithm) {
  if (!IsFusedOp(problem.request->op) || problem.world_size == 1) return {};
  if (algorithm == Algorithm::kNccl) return {Algorithm::kNccl, "asked for", 0};
  if (algorithm == Algorithm::kLowLatency) return {SmallKernel(problem), "the kernel of its size", 0};
  return algorithm == Algorithm::kUnfused ? Best(problem) : MatmulCollective{};
}

std::string UnfusedText(const Problem& problem, const MatmulCollective& collective) {
  const std::string by = Text(AlgorithmName(collective.algorithm), " (", collective.reason, "; predicted ",
                              MicrosecondsText(collective.predicted_us), " alone)");
  switch (problem.request->op) {
    case Op::kAllGatherMatmul: return Text("all-gather by ", by, ", then the product");
    case Op::kMatmulReduceScatter: return Text("the product, then reduce-scatter by ", by);
    default: return Text("the product, then all-reduce by ", by);
  }
}

}  // namespace tandem::plan
