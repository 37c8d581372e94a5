// Programs without data between ranks: a world of one, barrier and empty (no steps), and the matmul whose
// input arrives in chunks.
#include "daemon/planner/families/families.h"
#include "daemon/planner/forms/matmul_parts.h"
#include "program/text.h"

namespace tandem::plan {

Status BuildLocalCollective(const Problem& problem, OperationPlan* plan) {
  Builder builder(1, 1);
  builder.Copy(0, 0, problem.Slot(0, problem.slots.input), problem.Slot(0, problem.slots.output), true,
               "copy");
  return builder.Finish(plan);
}

// An engine starts a launch once all ranks' streams have reached it, each with a fence behind its earlier
// work: no step could add to that. In the client the ranks meet by a kernel of one phase.
Status BuildBarrier(const Problem& problem, OperationPlan* plan) {
  Builder builder(problem.world_size, 1);
  const bool by_kernel = problem.in_client() && problem.request->op == Op::kBarrier;
  for (int r = 0; by_kernel && r < problem.world_size; ++r) {
    builder.BeginCollective(r, 0, Algorithm::kDirect, Op::kBarrier, {}, {}, ReduceOp::kSum);
    builder.AnnounceStart(r, 0);
    builder.AwaitStarts(r, 0);
    builder.EndCollective(r);
  }
  return builder.Finish(plan);
}

Status BuildAsyncInputMatmul(const Problem& problem, OperationPlan* plan) {
  Builder builder(problem.world_size, 1);
  for (int r = 0; r < problem.world_size; ++r) {
    // Ranks do not meet, not even at the end: a rank whose chunks come late delays nobody. Peers touch no
    // operand of this rank, so that nothing needs the program to close.
    MatmulStep matmul = WholeMatmul(problem, r, 0);
    matmul.has_chunk_signals = true;
    matmul.chunk_signals = problem.Slot(r, problem.slots.chunk_signals);
    matmul.chunk_pivot = problem.requests[r].chunk_pivot;
    if (Elements(matmul.c) > 0) builder.Add(r, 0, std::move(matmul), "gemm of chunks");
  }
  plan->roundings = 1;
  plan->steps = static_cast<int>(Elements(problem.Slot(0, problem.slots.chunk_signals)));
  return builder.Finish(plan);
}

}  // namespace tandem::plan
