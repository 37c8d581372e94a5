// File: client_plans.h
//
// The planner's programs that the tests of client placement prove, and break.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "daemon/planner/planner.h"
#include "daemon/planner/tests/reference/reference_cases.h"
#include "daemon/planner/tests/reference/reference_ops.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {

using Programs = std::vector<RankProgram>;

inline constexpr VerifyOptions kClient{.in_client = true};

struct Planned {
  Case from;
  std::string key;  // operation and algorithm
  OperationPlan plan;
  VerifyContext context;
};

std::vector<Planned> PlansOf(int world);
// Tensors of 48 MiB, which do not fit into workspace, with and without symmetric outputs.
std::vector<Planned> BulkPlansOf(int world);
// The fused kernels of many rows as a group that is placed in the client has them.
std::vector<Planned> FusedPlansOfClients(int world);
// The client's plans of a world size, one or two of each kind that exchanges bytes.
std::vector<Planned> ClientPlansOf(int world);

// "client", or why not: the reason of the proof, or what the form lacks.
std::string Judge(const Programs& programs, const VerifyContext& context);
// Null: there is none, or more than one.
CollectiveStep* KernelOf(RankProgram& program);
// Drops steps of rank `rank`'s kernel for which `wanted` holds; returns how many.
int DropSteps(Programs* programs, size_t rank, const std::function<bool(const Step&)>& wanted);

}  // namespace tandem::plan
