// File: registry.h
//
// `Registry`: the store of the control plane. Sessions, groups, names, segments and their accounts, under one
// mutex that is held shortly and never across a wait or a call to an engine. Only the services of
// daemon/control include this.
//
// Thread rule: hold a RegistryLock for everything. Commands are posted under it too, so that each engine sees
// the registry's transitions in their order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "daemon/control/base/engine_mailbox.h"
#include "daemon/control/base/ledger.h"
#include "daemon/control/base/registry_mutex.h"
#include "daemon/control/base/snapshot.h"
#include "daemon/control/records/change_sink.h"
#include "daemon/control/records/group_record.h"
#include "daemon/control/records/join_records.h"
#include "daemon/control/records/memory_records.h"
#include "daemon/control/records/session_record.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {

struct Registry {
  explicit Registry(const ControlLimits& limits, const std::vector<AllowRule>& rules = {}) : ledger(limits) {
    ledger.SetRules(rules);
  }

  std::mutex mutex;  // by RegistryLock only
  // An engine came up or went, or a group that waits for one is over.
  std::condition_variable engines_changed;

  std::map<uint64_t, std::shared_ptr<SessionRecord>> sessions TANDEM_GUARDED_BY(registry_mutex);
  std::map<uint64_t, std::shared_ptr<GroupRecord>> groups TANDEM_GUARDED_BY(registry_mutex);
  std::map<std::string, NameRecord> names TANDEM_GUARDED_BY(registry_mutex);
  // Names without a group that are kept, by user, so that one user's names drive out nobody else's. The
  // oldest come first, and a name may be listed more than once: only the latest entry counts.
  struct KeptNames {
    std::deque<std::pair<Waiter::Clock::time_point, std::string>> verdicts;  // with the failure of a join
    std::deque<std::pair<uint64_t, std::string>> idle;  // with NameRecord::idle, for their incarnations
  };
  std::map<uint32_t, KeptNames> kept_names TANDEM_GUARDED_BY(registry_mutex);
  uint64_t next_idle TANDEM_GUARDED_BY(registry_mutex) = 1;
  std::set<std::shared_ptr<SegmentSet>> sets TANDEM_GUARDED_BY(registry_mutex);
  Ledger ledger TANDEM_GUARDED_BY(registry_mutex);
  // By plan id.
  std::unordered_map<uint64_t, std::weak_ptr<GroupRecord>> plan_groups TANDEM_GUARDED_BY(registry_mutex);
  // By id.
  std::unordered_map<uint64_t, std::weak_ptr<SessionRecord>> launches TANDEM_GUARDED_BY(registry_mutex);
  // Sessions that an operator has ended, the oldest first: their clients get the reason.
  std::deque<std::shared_ptr<SessionRecord>> evicted TANDEM_GUARDED_BY(registry_mutex);
  std::vector<std::unique_ptr<EngineMailbox>> mailboxes TANDEM_GUARDED_BY(registry_mutex);  // by GPU
  uint32_t posted_to TANDEM_GUARDED_BY(registry_mutex) = 0;                   // bit g: the mailbox of GPU g
  std::vector<uint64_t> engine_generation TANDEM_GUARDED_BY(registry_mutex);  // by GPU; 0: down
  struct EngineUse {
    uint64_t sessions = 0;
    Waiter::Clock::time_point unused_since = Waiter::Clock::now();  // or from when it came up
  };
  std::vector<EngineUse> engine_uses TANDEM_GUARDED_BY(registry_mutex);  // by GPU
  // Of sessions, groups, tensors, registrations, channels, segments, transfers and launches.
  uint64_t next_id TANDEM_GUARDED_BY(registry_mutex) = 1;
  uint64_t next_plan_id TANDEM_GUARDED_BY(registry_mutex) = 1;  // 24 bits in the order log: see NewPlanId
  Admission admission TANDEM_GUARDED_BY(registry_mutex) = Admission::kOpen;
  std::map<int, std::string> cordoned_gpus TANDEM_GUARDED_BY(registry_mutex);  // why, by GPU
  bool stopping TANDEM_GUARDED_BY(registry_mutex) = false;
  // Keeps the journal for the next tandemd; null: there will be none.
  std::shared_ptr<ChangeSink> state TANDEM_GUARDED_BY(registry_mutex);
  // A change of a record that the journal has is reported here, before the mutex is released.
  void Touch(const SessionRecord& session) TANDEM_REQUIRES(registry_mutex);
  void Touch(const GroupRecord& group) TANDEM_REQUIRES(registry_mutex);
  void TouchPlan(const GroupRecord& group, uint64_t plan_id) TANDEM_REQUIRES(registry_mutex);
  void TouchPlans(const GroupRecord& group) TANDEM_REQUIRES(registry_mutex);  // all of them
  void Touch(SegmentSet& set) TANDEM_REQUIRES(registry_mutex);
  void TouchLaunch(uint64_t id) TANDEM_REQUIRES(registry_mutex);

  NodeCounters counters TANDEM_GUARDED_BY(registry_mutex);

  // False once the group has been destroyed: a call that holds it must not give it anything more.
  bool Has(const GroupRecord& group) const TANDEM_REQUIRES(registry_mutex);
  // The order log keeps 24 bits of an id: no other living group or plan has the same ones. 0 if there is no
  // plan id left.
  uint64_t NewGroupId() TANDEM_REQUIRES(registry_mutex);
  uint64_t NewPlanId() TANDEM_REQUIRES(registry_mutex);

  // To post to; what is posted goes when the mutex is released.
  EngineMailbox& MailboxOf(int gpu) TANDEM_REQUIRES(registry_mutex) {
    posted_to |= 1u << gpu;
    return *mailboxes[static_cast<size_t>(gpu)];
  }
  // Before the mutex is released: changes come into the journal, then what has been posted goes.
  void Settle() TANDEM_REQUIRES(registry_mutex);
  uint64_t GenerationOf(int gpu) const TANDEM_REQUIRES(registry_mutex) {
    return engine_generation[static_cast<size_t>(gpu)];
  }
  bool AllUp(const std::vector<int>& gpus) const TANDEM_REQUIRES(registry_mutex);
  // The session may need the engine of `gpu` until it ends. Once for each GPU counts.
  void UseEngine(SessionRecord& session, int gpu) TANDEM_REQUIRES(registry_mutex);
  void EndUses(SessionRecord& session) TANDEM_REQUIRES(registry_mutex);
  // Posts `command` to the engine of every rank of `group`, except for that of `except_gpu`.
  void PostToAll(const GroupRecord& group, const engine::v1::Command& command,
                 const std::shared_ptr<CommandBatch>& batch = nullptr, int except_gpu = -1)
      TANDEM_REQUIRES(registry_mutex);

  // The group of this id and the rank that the session has in it. NOT_FOUND, also for the id of a group that
  // the session is no member of.
  Result<std::shared_ptr<GroupRecord>> FindGroup(const SessionRecord& session, uint64_t group_id, int* rank)
      TANDEM_REQUIRES(registry_mutex);
  // OK while the session may be used; else UNAVAILABLE or UNAUTHENTICATED.
  Status SessionAlive(const SessionRecord& session) const TANDEM_REQUIRES(registry_mutex);
  // OK while the node takes new `what` ("sessions"); else UNAVAILABLE, reason CORDONED or DRAINING.
  Status Admits(const char* what) const TANDEM_REQUIRES(registry_mutex);
  // OK while the GPU takes new groups; else UNAVAILABLE, reason GPU_CORDONED.
  Status AdmitsOn(int gpu) const TANDEM_REQUIRES(registry_mutex);
  // The status of a removal, given the engine's answer. A dead engine holds nothing, so any failure but a
  // deadline counts as success, except while the daemon stops: its engines may hold the memory still.
  Status RemovalStatus(const Status& answer) const TANDEM_REQUIRES(registry_mutex);

  // Forgets a name without a group, unless its incarnation or its verdict is to be kept.
  void ForgetName(const std::string& scope) TANDEM_REQUIRES(registry_mutex);
  // Keeps the verdict that the name has got, until ForgetVerdicts.
  void KeepVerdict(const std::string& scope) TANDEM_REQUIRES(registry_mutex);
  // Forgets verdicts that were given before `limit`, and a user's oldest ones beyond a number.
  void ForgetVerdicts(Waiter::Clock::time_point limit) TANDEM_REQUIRES(registry_mutex);
};

}  // namespace tandem::daemon
