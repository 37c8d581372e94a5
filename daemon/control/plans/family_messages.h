// File: family_messages.h
//
// A family in the terms of the protocol: its table for people and ranks, and what a rank makes members from
// beside its request.
#pragma once

#include "daemon/planner/types/operation_plan.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

void FillRows(const plan::RowTable& from, v1::RowTable* rows);

// `group`: as the family was planned for it.
void FillFamily(const plan::GroupContext& group, v1::Family* family);

}  // namespace tandem::daemon
