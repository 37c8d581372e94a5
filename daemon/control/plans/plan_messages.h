// File: plan_messages.h
//
// A plan in the terms of the protocols: its explanation for clients, and its command for each engine. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/planner/planner.h"
#include "tandem/engine/v1/engine.pb.h"
#include "tandem/op_request.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

// The explanation, without ids and without the group's own figures.
void FillPlanInfo(const plan::OperationPlan& from, v1::PlanInfo* info);
// The operands of one rank's request, as launches bind them.
void FillOperands(const OpRequest& request, v1::PlanInfo* info);

// By rank: the command that adds the plan. Its id and its index are still to be set.
std::vector<engine::v1::Command> AddPlanCommands(const plan::OperationPlan& plan,
                                                 const std::vector<OpRequest>& requests, uint64_t group_id,
                                                 const std::string& key);
// "all_reduce f32[8,16] ('sum')": a plan for messages.
std::string CallName(const OpRequest& request, const std::string& key);

// Whether a program has a step that needs the engines' communicator.
bool NeedsCommunicator(const std::vector<plan::Step>& steps);

}  // namespace tandem::daemon
