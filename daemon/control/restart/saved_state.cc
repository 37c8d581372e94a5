#include "daemon/control/restart/saved_state.h"

#include <string_view>

#include "daemon/control/restart/state_records.h"

namespace tandem::daemon {

Result<SavedState> ParseState(const std::map<std::string, std::string>& records) {
  SavedState state;
  bool has_node = false;
  for (const auto& [key, value] : records) {
    const std::string_view kind = std::string_view(key).substr(0, key.find('/'));
    bool parsed = false;
    if (kind == kNodeKey) {
      parsed = has_node = state.node.ParseFromString(value);
    } else if (kind == "session") {
      state::v1::Session session;
      parsed = session.ParseFromString(value) && session.token().size() == kTokenBytes;
      state.sessions[session.id()] = std::move(session);
    } else if (kind == "launch") {
      state::v1::Launch launch;
      parsed = launch.ParseFromString(value);
      state.launches[launch.session_id()][launch.id()] = std::move(launch);
    } else if (kind == "group") {
      state::v1::Group group;
      parsed = group.ParseFromString(value) && group.members_size() == group.gpus_size();
      state.groups[group.id()] = std::move(group);
    } else if (kind == "plan") {
      state::v1::Plan plan;
      parsed = plan.ParseFromString(value);
      state.plans[plan.group_id()][plan.id()] = std::move(plan);
    } else if (kind == "plan-use") {
      state::v1::PlanUse use;
      parsed = use.ParseFromString(value);
      state.plan_uses[use.id()] = std::move(use);
    } else if (kind == "set") {
      state::v1::Set set;
      parsed = set.ParseFromString(value) && set.segment_ids_size() > 0 &&
               set.segment_ids_size() == set.gpus_size() && set.segment_ids_size() == set.mapped_size();
      if (parsed) state.sets[set.segment_ids(0)] = std::move(set);
    }
    if (!parsed) return Status(Code::kDataLoss, "the journal's record '" + key + "' is malformed");
  }
  if (!has_node) return Status(Code::kDataLoss, "the journal has no record of the node");
  return state;
}

}  // namespace tandem::daemon
