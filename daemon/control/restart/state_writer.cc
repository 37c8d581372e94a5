#include "daemon/control/restart/state_writer.h"

#include <utility>

#include "daemon/control/restart/state_records.h"

namespace tandem::daemon {
namespace {

// With more plans a comparison takes too long.
constexpr size_t kMaxCompared = 64;

// All records of the registry as they are to be.
std::map<std::string, std::string> Records(const Registry& registry) TANDEM_REQUIRES(registry_mutex) {
  std::map<std::string, std::string> records;
  records[kNodeKey] = Serialized(StateOf(registry));
  for (const auto& [id, session] : registry.sessions) {
    records[SessionKey(id)] = Serialized(StateOf(*session));
    for (const auto& [launch_id, launch] : session->launches)
      records[LaunchKey(launch_id)] = Serialized(StateOf(launch_id, launch, id));
  }
  for (const auto& set : registry.sets) records[SetKey(*set)] = Serialized(StateOf(*set));
  for (const auto& [id, group] : registry.groups) {
    if (!IsKept(*group)) continue;
    records[GroupKey(id)] = Serialized(StateOf(*group));
    for (const auto& [plan_id, plan] : group->plans) {
      if (!plan.acknowledged) continue;
      records[PlanKey(plan_id)] = Serialized(StateOf(id, plan));
      records[PlanUseKey(plan_id)] = Serialized(UseOf(plan));
    }
  }
  return records;
}

}  // namespace

StateWriter::StateWriter(Journal journal, Reports reports)
    : journal_(std::move(journal)), reports_(std::move(reports)) {}

void StateWriter::WriteGroup(const Registry& registry, uint64_t id) {
  const auto found = registry.groups.find(id);
  if (found != registry.groups.end() && IsKept(*found->second)) {
    journal_.Put(GroupKey(id), Serialized(StateOf(*found->second)));
    if (!written_.try_emplace(id).second) return;
    for (const auto& [plan_id, plan] : found->second->plans) TouchPlan(id, plan_id);
    return;
  }
  journal_.Erase(GroupKey(id));
  const auto written = written_.find(id);
  if (written == written_.end()) return;
  for (const uint64_t plan_id : written->second) ErasePlan(plan_id);
  written_.erase(written);
}

void StateWriter::WritePlan(const Registry& registry, uint64_t group_id, uint64_t id) {
  const auto written = written_.find(group_id);
  const auto group = registry.groups.find(group_id);
  if (written == written_.end() || group == registry.groups.end()) return;
  const auto found = group->second->plans.find(id);
  if (found == group->second->plans.end() || !found->second.acknowledged) {
    if (written->second.erase(id) != 0) ErasePlan(id);
    return;
  }
  if (written->second.insert(id).second) {
    journal_.Put(PlanKey(id), Serialized(StateOf(group_id, found->second)));
  }
  journal_.Put(PlanUseKey(id), Serialized(UseOf(found->second)));
}

void StateWriter::ErasePlan(uint64_t id) {
  journal_.Erase(PlanUseKey(id));
  journal_.Erase(PlanKey(id));
}

void StateWriter::Write(const Registry& registry) {
  if (closed_) return;
  journal_.Put(kNodeKey, Serialized(StateOf(registry)));
  for (const auto& set : std::exchange(sets_, {})) {
    if (registry.sets.contains(set)) {
      journal_.Put(SetKey(*set), Serialized(StateOf(*set)));
    } else {
      journal_.Erase(SetKey(*set));
    }
  }
  for (const uint64_t id : std::exchange(sessions_, {})) {
    const auto found = registry.sessions.find(id);
    if (found == registry.sessions.end()) {
      journal_.Erase(SessionKey(id));
    } else {
      journal_.Put(SessionKey(id), Serialized(StateOf(*found->second)));
    }
  }
  for (const uint64_t id : std::exchange(launches_, {})) {
    const auto found = registry.launches.find(id);
    const std::shared_ptr<SessionRecord> session =
        found == registry.launches.end() ? nullptr : found->second.lock();
    const auto launch = session ? session->launches.find(id) : std::map<uint64_t, LaunchRecord>::iterator();
    if (session && launch != session->launches.end()) {
      journal_.Put(LaunchKey(id), Serialized(StateOf(id, launch->second, session->id)));
    } else {
      journal_.Erase(LaunchKey(id));
    }
  }
  // First the groups: an index that one has given to a plan is never given again.
  for (const uint64_t id : std::exchange(groups_, {})) WriteGroup(registry, id);
  for (const auto& [group_id, id] : std::exchange(plans_, {})) WritePlan(registry, group_id, id);
  if (!journal_.status().ok()) {
    closed_ = true;
    return reports_.failed(journal_.status());
  }
  if (!reports_.difference || registry.plan_groups.size() > kMaxCompared) return;
  for (const std::string& name : Differences(registry)) reports_.difference(name);
}

void StateWriter::WriteAll(const Registry& registry) {
  const std::map<std::string, std::string> records = Records(registry);
  for (const auto& [key, value] : records) journal_.Put(key, value);
  for (const auto& [key, digest] : journal_.Digests()) {
    if (!records.contains(key)) journal_.Erase(key);
  }
  written_.clear();
  for (const auto& [id, group] : registry.groups) {
    if (!IsKept(*group)) continue;
    std::set<uint64_t>& written = written_[id];
    for (const auto& [plan_id, plan] : group->plans) {
      if (plan.acknowledged) written.insert(plan_id);
    }
  }
}

std::vector<std::string> StateWriter::Differences(const Registry& registry) const {
  std::vector<std::string> differences;
  if (closed_) return differences;
  const std::map<std::string, std::string> records = Records(registry);
  for (const auto& [key, value] : records) {
    if (journal_.Get(key) != value) differences.push_back(key);
  }
  for (const auto& [key, digest] : journal_.Digests()) {
    if (!records.contains(key)) differences.push_back(key + " is too many");
  }
  return differences;
}

}  // namespace tandem::daemon
