// File: operand_checks.h
//
// Checks of a request's operands by themselves, before any operation's own rules: shapes, strides, aliases,
// and how often each role occurs. Requests come from clients, so nothing in them is trusted.
#pragma once

#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

inline constexpr int kMaxOperands = 64;
inline constexpr int64_t kMaxOperandBytes = int64_t{1} << 46;

// Sizes, strides and aliases of all operands.
Status CheckOperands(const OpRequest& request);

// The slots by role; an error when a role that `op` does not know occurs, one is missing, or too many are
// given.
Result<Slots> FindSlots(const OpRequest& request);

inline const TensorSpec& Spec(const Problem& problem, int slot) { return problem.operand(slot).spec; }

// "operands[3].shape" and the like.
std::string OperandField(int slot, std::string_view member);

}  // namespace tandem::plan
