// File: join_records.h
//
// Records of names: the incarnation of each, and the join that is under way. Plain data under the registry's
// mutex.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/control/base/barrier.h"
#include "daemon/control/records/group_record.h"
#include "daemon/control/records/session_record.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

// The party that has taken a slot of a join, or has given it up.
struct JoinParty {
  std::shared_ptr<SessionRecord> session;  // none: no party has come
  v1::JoinGroupRequest request;
  int gpu = 0;
};

struct JoinBarrier : Barrier {
  using Barrier::Barrier;
  std::vector<JoinParty> parties;  // by rank
  std::shared_ptr<GroupRecord> group;
};

// The failure of a join, kept for the ranks that come late: they get it once instead of waiting for ranks
// that have gone.
struct JoinVerdict {
  Status status;
  Waiter::Clock::time_point since;
  std::set<int> ranks;          // that have got it
  std::set<uint64_t> sessions;  // that have got it
};

// By scope. A scope begins with the decimal uid and a slash.
struct NameRecord {
  uint64_t incarnation = 0;
  uint64_t idle = 0;  // its latest entry in the registry's list of idle names
  std::shared_ptr<GroupRecord> current;
  std::shared_ptr<JoinBarrier> joining;
  std::optional<JoinVerdict> verdict;
  std::shared_ptr<std::condition_variable> freed = std::make_shared<std::condition_variable>();
};

}  // namespace tandem::daemon
