// File: reference_cases.h
//
// Groups and requests that together reach every algorithm: each operation with odd shapes, every dimension,
// dtypes, wire types, scale modes, step counts and lanes, for one world size.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "daemon/planner/planner.h"

namespace tandem::plan {

struct Case {
  std::string name;
  std::vector<OpRequest> requests;
  GroupContext group;
};

// Contiguous without `strides`.
Operand MakeOperand(Role role, DType dtype, std::vector<int64_t> shape, bool symmetric = false,
                    std::vector<int64_t> strides = {});
// `request` with the norm of the output, slot `output`. Its weights get the next slot, and with `residual`
// the residual and where that goes get two more.
OpRequest WithNorm(OpRequest request, int output, bool residual);
// `request` with the norm of slot `output` quantised: by a given scale (`scales` 0), or by so many for each row.
OpRequest WithQuantization(OpRequest request, int output, int64_t scales);
// Sums with a norm behind them, by name, whose algorithm is left open.
std::vector<std::pair<std::string, OpRequest>> NormRequests();
// Reductions that are neither sums nor averages, by name, whose algorithm is left open.
std::vector<std::pair<std::string, OpRequest>> ReductionRequests(int world);
// `world` GPUs behind NVSwitches.
GroupContext ReferenceSwitchGroup(int world);
// The eight GPUs of a DGX-1.
GroupContext ReferenceMeshGroup();

// All cases of a world size, every algorithm of their operation asked for by name (CUDA's own aside).
std::vector<Case> CasesOf(int world);
// The algorithms of CUDA's own kernels, for a group that has them.
std::vector<Case> KernelCasesOf(int world);

}  // namespace tandem::plan
