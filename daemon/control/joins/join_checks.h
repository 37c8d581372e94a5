// File: join_checks.h
//
// Whether the ranks of a join agree. Pure: the first of two parties that contradict each other is not known
// to be the wrong one, so a mismatch names both ranks.
#pragma once

#include <string>

#include "tandem/status.h"

namespace tandem::v1 {
class JoinGroupRequest;
}

namespace tandem::daemon {

// A request on its own: world size, rank and host. `pid` is the caller's.
Status CheckJoinRequest(const v1::JoinGroupRequest& request, int pid);

// One party of a join.
struct JoinClaim {
  const v1::JoinGroupRequest& request;
  int pid = 0;
  int gpu = 0;
};

// Two claims of different sessions, in the order in which they came. OK, or INVALID_ARGUMENT or
// ALREADY_EXISTS, reason JOIN_MISMATCH, with the field that differs.
Status CompareJoins(const JoinClaim& first, const JoinClaim& second);

}  // namespace tandem::daemon
