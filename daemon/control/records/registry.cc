#include "daemon/control/records/registry.h"

#include <algorithm>
#include <cstdlib>

#include "daemon/control/base/blame.h"
#include "ipc/order_log.h"

namespace tandem::daemon {
namespace {

// Names of a user's ended groups kept for their incarnation count.
constexpr size_t kMaxIdleNames = 1024;
constexpr size_t kMaxVerdicts = 1024;  // of a user

uint32_t UserOf(const std::string& scope) {
  return static_cast<uint32_t>(std::strtoul(scope.c_str(), nullptr, 10));
}

}  // namespace

RegistryLock::RegistryLock(Registry& registry) : registry_(registry), lock_(registry.mutex) {}

RegistryLock::~RegistryLock() {
  if (lock_.owns_lock()) Settle();
}

void RegistryLock::Unlock() {
  Settle();
  lock_.unlock();
}

void RegistryLock::Settle() { registry_.Settle(); }

void Registry::Settle() {
  if (state) state->Write(*this);
  for (size_t gpu = 0; posted_to != 0; ++gpu, posted_to >>= 1) {
    if ((posted_to & 1) != 0 && gpu < mailboxes.size()) mailboxes[gpu]->Send();
  }
}

void Registry::Touch(const SessionRecord& session) {
  if (state) state->TouchSession(session.id);
}

void Registry::Touch(const GroupRecord& group) {
  if (state) state->TouchGroup(group.id);
}

void Registry::TouchPlan(const GroupRecord& group, uint64_t plan_id) {
  if (state) state->TouchPlan(group.id, plan_id);
}

void Registry::TouchPlans(const GroupRecord& group) {
  for (const auto& [id, plan] : group.plans) TouchPlan(group, id);
}

void Registry::Touch(SegmentSet& set) {
  if (state) state->TouchSet(set.shared_from_this());
}

void Registry::TouchLaunch(uint64_t id) {
  if (state) state->TouchLaunch(id);
}

bool Registry::Has(const GroupRecord& group) const {
  const auto it = groups.find(group.id);
  return it != groups.end() && it->second.get() == &group;
}

uint64_t Registry::NewGroupId() {
  const auto taken = [&](uint64_t id) TANDEM_REQUIRES(registry_mutex) {
    return std::any_of(groups.begin(), groups.end(),
                       [&](const auto& group) { return ((group.first ^ id) & kLogIdMask) == 0; });
  };
  while (taken(next_id)) ++next_id;
  return next_id++;
}

uint64_t Registry::NewPlanId() {
  if (plan_groups.size() >= kLogIdMask) return 0;
  for (;;) {
    const uint64_t id = next_plan_id;
    next_plan_id = id == kLogIdMask ? 1 : id + 1;
    if (!plan_groups.contains(id)) return id;
  }
}

Status Registry::Admits(const char* what) const {
  if (admission == Admission::kOpen) return Status::Ok();
  const bool draining = admission == Admission::kDraining;
  return Unavailable(
             std::string(draining ? "the daemon is draining: no new " : "the node is cordoned: no new ") +
             what)
      .WithDetail({.reason = draining ? "DRAINING" : "CORDONED", .who = {}, .field = {}});
}

Status Registry::AdmitsOn(int gpu) const {
  const auto found = cordoned_gpus.find(gpu);
  if (found == cordoned_gpus.end()) return Status::Ok();
  return Unavailable("GPU " + std::to_string(gpu) + " is cordoned: no new groups on it (" + found->second +
                     ")")
      .WithDetail(BlameGpu("GPU_CORDONED", gpu));
}

bool Registry::AllUp(const std::vector<int>& gpus) const {
  for (const int gpu : gpus) {
    if (GenerationOf(gpu) == 0) return false;
  }
  return true;
}

void Registry::UseEngine(SessionRecord& session, int gpu) {
  if (session.ended || !session.used_engines.insert(gpu).second) return;
  ++engine_uses[static_cast<size_t>(gpu)].sessions;
}

void Registry::EndUses(SessionRecord& session) {
  for (const int gpu : session.used_engines) {
    EngineUse& use = engine_uses[static_cast<size_t>(gpu)];
    if (--use.sessions == 0) use.unused_since = Waiter::Clock::now();
  }
  session.used_engines.clear();
}

void Registry::PostToAll(const GroupRecord& group, const engine::v1::Command& command,
                         const std::shared_ptr<CommandBatch>& batch, int except_gpu) {
  for (const int gpu : group.gpus) {
    if (gpu != except_gpu) MailboxOf(gpu).Post(command, {}, batch);
  }
}

Result<std::shared_ptr<GroupRecord>> Registry::FindGroup(const SessionRecord& session, uint64_t group_id,
                                                         int* rank) {
  const auto it = groups.find(group_id);
  if (it != groups.end()) {
    const GroupState state = it->second->state();
    const bool joined = state != GroupState::kInstalling && state != GroupState::kDoomed;
    for (size_t r = 0; joined && r < it->second->members.size(); ++r) {
      const MemberRecord& member = it->second->members[r];
      if (member.session_id != session.id || member.left) continue;
      *rank = static_cast<int>(r);
      return it->second;
    }
  }
  return NotFound("no group " + std::to_string(group_id) + " in this session");
}

Status Registry::SessionAlive(const SessionRecord& session) const {
  if (stopping) return Unavailable("the daemon is stopping");
  return session.ended ? session.end : Status::Ok();
}

Status Registry::RemovalStatus(const Status& answer) const {
  if (answer.code() == Code::kDeadlineExceeded) return answer;
  return !answer.ok() && stopping ? Unavailable("the daemon is stopping") : Status::Ok();
}

void Registry::ForgetName(const std::string& scope) {
  const auto it = names.find(scope);
  if (it == names.end() || it->second.current || it->second.joining || it->second.verdict) return;
  if (it->second.incarnation == 0) {
    names.erase(it);
    return;
  }
  auto& idle = kept_names[UserOf(scope)].idle;
  idle.emplace_back(it->second.idle = next_idle++, scope);
  if (idle.size() <= kMaxIdleNames) return;
  const auto [number, oldest] = std::move(idle.front());
  idle.pop_front();
  const auto old = names.find(oldest);
  if (old == names.end() || old->second.idle != number) return;
  const NameRecord& name = old->second;
  if (!name.current && !name.joining && !name.verdict) names.erase(old);
}

void Registry::KeepVerdict(const std::string& scope) {
  kept_names[UserOf(scope)].verdicts.emplace_back(names[scope].verdict->since, scope);
}

void Registry::ForgetVerdicts(Waiter::Clock::time_point limit) {
  for (auto user = kept_names.begin(); user != kept_names.end();) {
    auto& verdicts = user->second.verdicts;
    while (!verdicts.empty() && (verdicts.front().first <= limit || verdicts.size() > kMaxVerdicts)) {
      const auto [since, scope] = std::move(verdicts.front());
      verdicts.pop_front();
      const auto it = names.find(scope);
      if (it == names.end() || !it->second.verdict || it->second.verdict->since != since) continue;
      it->second.verdict.reset();
      ForgetName(scope);
    }
    user = verdicts.empty() && user->second.idle.empty() ? kept_names.erase(user) : std::next(user);
  }
}

}  // namespace tandem::daemon
