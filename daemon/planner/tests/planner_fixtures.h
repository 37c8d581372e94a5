// File: planner_fixtures.h
//
// Groups and requests for the planner's tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/planner/planner.h"

namespace tandem::plan {

// `world` GPUs behind NVSwitches, with peer access.
GroupContext SwitchGroup(int world);
// The same of Hopper GPUs, by default with the fused kernels.
GroupContext HopperGroup(int world);
// The eight GPUs of a DGX-1: two fully linked quads, mates i and i + 4; peer access over links only.
GroupContext MeshGroup();
// `world` GPUs on PCIe with peer access.
GroupContext PcieGroup(int world);

Operand Tensor(Role role, DType dtype, std::vector<int64_t> shape, std::vector<int64_t> strides = {});
OpRequest Request(Op op, std::vector<Operand> operands);
// All-reduce of `count` elements.
OpRequest AllReduce(int64_t count, DType dtype = DType::kF32);
// A [m, k] shard, B [k, n], gathered along `dim`.
OpRequest GatherMatmul(int world, int64_t m, int64_t n, int64_t k, int dim = 0, DType dtype = DType::kF32);
// A [m, k], B [k, n], product scattered along `dim`.
OpRequest MatmulScatter(int world, int64_t m, int64_t n, int64_t k, int dim = 0, DType dtype = DType::kF32);
OpRequest MatmulAllReduce(int64_t m, int64_t n, int64_t k, DType dtype = DType::kF32);

std::vector<OpRequest> OnAllRanks(const OpRequest& request, int world);

// Plans `request` on all ranks of `group`.
Result<OperationPlan> PlanOf(const OpRequest& request, const GroupContext& group);

// The same; fails the test where there is no plan.
OperationPlan MustPlan(const OpRequest& request, const GroupContext& group);

// The reason against `algorithm` in `plan`; "not refused" if it is the chosen one.
std::string ReasonAgainst(const OperationPlan& plan, Algorithm algorithm);

// Every step of `program` in program order, collectives expanded.
std::vector<Step> ExpandedSteps(const RankProgram& program);

// Runs all programs in program order as on one in-order queue a rank. Returns the fault, or "": a deadlock, a
// word that is signalled twice or never waited for, an access out of bounds. Also an access to a peer's
// operand that is not symmetric, and a program that does not close.
std::string Simulate(const OperationPlan& plan, const std::vector<OpRequest>& requests);

// Checks that `request`, changed by `change`, is refused with an error about `field` that says `text`.
void ExpectRefused(OpRequest request, const std::function<void(OpRequest*)>& change, const std::string& field,
                   const std::string& text = "", int world = 4);

}  // namespace tandem::plan
