#include "daemon/planner/forms/feasibility.h"

#include "daemon/planner/forms/determinism.h"
#include "daemon/planner/forms/low_latency.h"
#include "daemon/planner/problem/fused_checks.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

// Bytes of the gathered A, or of the whole product in its wire type, whose staging fits into the workspace.
constexpr uint64_t kMaxSmallBytes = uint64_t{8} << 20;

// Empty, or the first pair of ranks that copy to each other in `algorithm` and cannot.
std::string MissingPeerAccess(const Problem& problem, Algorithm algorithm) {
  const Topology& topology = problem.group->topology;
  for (int i = 0; i < problem.world_size; ++i) {
    for (int j = i + 1; j < problem.world_size; ++j) {
      if (topology.HasPeerAccess(i, j)) continue;
      // The mesh's data goes over links only, and the class says that they are there.
      if (algorithm == Algorithm::kHybridCubeMesh && topology.LinkCount(i, j) == 0) continue;
      // A gathering ring touches neighbours only.
      const bool neighbours = j - i == 1 || j - i == problem.world_size - 1;
      if (algorithm == Algorithm::kRing && problem.request->op == Op::kAllGatherMatmul && !neighbours)
        continue;
      return Text("ranks ", i, " and ", j, " have no peer access");
    }
  }
  return {};
}

}  // namespace

std::string WhyImpossible(const Problem& problem, Algorithm algorithm) {
  const OpRequest& request = *problem.request;
  const bool nccl = problem.group->nccl;
  if (request.low_contention && algorithm != Algorithm::kCopyEngine && algorithm != Algorithm::kPipeline &&
      algorithm != Algorithm::kRing) {
    return "low contention was asked for, and it communicates by SMs";
  }
  if (std::string why = WhyNotDeterministic(problem, algorithm); !why.empty()) return why;
  switch (algorithm) {
    case Algorithm::kNccl:
      if (nccl && IsBitwise(problem.combine)) return Text("NCCL has no ", NameOf(problem.combine));
      return nccl ? "" : problem.group->no_nccl;
    case Algorithm::kLowLatency:
      if (std::string why = IsFusedOp(request.op) ? WhyNotSmall(problem) : WhyNoPackets(problem);
          !why.empty())
        return why;
      break;
    case Algorithm::kFused:
      if (!problem.group->fused_kernels) return problem.group->no_fused_kernels;
      if (std::string why = WhyNotFused(problem); !why.empty()) return why;
      break;
    case Algorithm::kHybridCubeMesh:
      if (problem.topology_class != TopologyClass::kHybridCubeMesh) {
        return Text("needs a hybrid cube mesh; this group is ", TopologyClassName(problem.topology_class));
      }
      break;
    case Algorithm::kUnfused: return {};  // its collective says whether it can
    case Algorithm::kDirect:
      if (request.op != Op::kSendReceive) return {};
      break;
    default: break;
  }
  return MissingPeerAccess(problem, algorithm);
}

std::string WhyNotSmall(const Problem& problem) {
  if (!problem.group->packet_kernels) return "needs the CUDA backend's kernels";
  if (problem.world_size == 1) return "one rank: nothing to communicate";
  if (!problem.first_dim()) return "its pieces are rows: the dimension must be the first";
  if (problem.rows == 0 || problem.n == 0 || problem.k == 0) return "an empty product";
  if (problem.message_bytes > kMaxSmallBytes) {
    return Text(BytesText(problem.message_bytes), " is above its bound of ", BytesText(kMaxSmallBytes));
  }
  if (problem.request->op != Op::kAllGatherMatmul) return {};
  if (problem.scales_travel()) return "A's scales travel too: it gathers one tensor";
  for (int r = 0; r < problem.world_size; ++r) {
    if (!IsContiguous(problem.Slot(r, problem.slots.a))) return "A must be contiguous";
  }
  return {};
}

}  // namespace tandem::plan
