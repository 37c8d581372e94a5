// File: family_messages.h
//
// A family in the terms of the protocol: its table for people and ranks, and what a rank makes members from.
#pragma once

#include <span>

#include "daemon/planner/types/operation_plan.h"
#include "tandem/op_request.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

void FillRows(const plan::RowTable& from, v1::RowTable* rows);

// `requests`: by rank, with the shapes of the bound. `group`: as the family was planned for it.
void FillFamily(std::span<const OpRequest> requests, const plan::GroupContext& group, v1::Family* family);

}  // namespace tandem::daemon
