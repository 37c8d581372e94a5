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
      if (plan.acknowledged) records[PlanKey(plan_id)] = Serialized(StateOf(id, plan));
    }
  }
  return records;
}

}  // namespace

StateWriter::StateWriter(Journal journal, Reports reports)
    : journal_(std::move(journal)), reports_(std::move(reports)) {}

void StateWriter::WriteGroup(const Registry& registry, uint64_t id) {
  const auto found = registry.groups.find(id);
  std::set<uint64_t>& written = plans_[id];
  std::set<uint64_t> plans;
  const bool kept = found != registry.groups.end() && IsKept(*found->second);
  if (kept) {
    for (const auto& [plan_id, plan] : found->second->plans) {
      if (!plan.acknowledged) continue;
      plans.insert(plan_id);
      if (!written.contains(plan_id)) journal_.Put(PlanKey(plan_id), Serialized(StateOf(id, plan)));
    }
    journal_.Put(GroupKey(id), Serialized(StateOf(*found->second)));
  } else {
    journal_.Erase(GroupKey(id));
  }
  for (const uint64_t plan_id : written) {
    if (!plans.contains(plan_id)) journal_.Erase(PlanKey(plan_id));
  }
  written = std::move(plans);
  if (!kept) plans_.erase(id);
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
  for (const uint64_t id : std::exchange(groups_, {})) WriteGroup(registry, id);
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
  plans_.clear();
  for (const auto& [id, group] : registry.groups) {
    for (const auto& [plan_id, plan] : group->plans) {
      if (IsKept(*group) && plan.acknowledged) plans_[id].insert(plan_id);
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
