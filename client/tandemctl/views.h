// File: views.h
//
// The daemon's answers as text for people. Pure functions of the replies.
#pragma once

#include <string>

#include "tandem/admin/v1/admin.pb.h"
#include "tandem/status.h"

namespace tandem::ctl {

// The link matrix in the style that people know: NV18 for 18 NVLinks, PIX … SYS for PCIe, X for itself.
Result<std::string> TopologyText(const admin::v1::GetTopologyReply& reply);
// "live, ready", or why not, a line for each cause.
std::string NameOfAlgorithm(uint32_t algorithm);
std::string HealthText(const admin::v1::GetHealthReply& reply);
std::string DoctorText(const admin::v1::DoctorReply& reply);
std::string SessionsText(const admin::v1::ListSessionsReply& reply);
std::string GroupsText(const admin::v1::ListGroupsReply& reply);
std::string PoolsText(const admin::v1::ListPoolsReply& reply, bool segments);
std::string PlansText(const admin::v1::ListPlansReply& reply);
// That there are more plans, and how to go on; empty if there are none.
std::string MorePlansText(const admin::v1::ListPlansReply& reply);
// One plan with its whole explanation and, if the reply has them, its programs.
std::string PlanText(const admin::v1::PlanEntry& plan, const std::string& prediction_model);
// A predicted time and the GPUs that it is of: "18.6 us (model of …)".
std::string PredictedText(double us, const std::string& prediction_model);
std::string QueueText(const admin::v1::GetQueueReply& reply);
std::string StatsText(const admin::v1::GetStatsReply& reply);

}  // namespace tandem::ctl
