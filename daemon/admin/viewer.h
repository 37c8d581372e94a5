// File: viewer.h
//
// `Viewer`: whose sessions, groups and plans a caller of the reading services may see; `Caller`: who calls.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/control/base/snapshot.h"

namespace tandem::daemon {

// The process at the other end of a connection, as it was when it connected.
struct Caller {
  uint32_t uid = 0;
  int pid = 0;                        // 0: of another pid namespace
  std::string command = {};           // its command line, on one line
  std::vector<uint32_t> groups = {};  // its gid and its supplementary groups
  bool in_own_namespace = false;      // of pids: not in a container that tandemd is not in
};

class Viewer {
 public:
  // Sees all users' things.
  static Viewer OfAll() { return Viewer(std::nullopt, false); }
  // Sees those of one uid.
  static Viewer Of(uint32_t uid) { return Viewer(uid, false); }
  // Sees nobody's: a caller that is not known.
  static Viewer OfNone() { return Viewer(std::nullopt, true); }

  bool sees_all() const { return !none_ && !uid_.has_value(); }
  bool Sees(uint32_t uid) const { return !none_ && uid_.value_or(uid) == uid; }
  // The groups among `groups` that it sees, by id.
  std::set<uint64_t> Seen(const std::vector<GroupSnapshot>& groups) const {
    std::set<uint64_t> ids;
    for (const GroupSnapshot& group : groups) {
      if (group.id != 0 && Sees(group.uid)) ids.insert(group.id);  // 0: ranks still meet
    }
    return ids;
  }

 private:
  Viewer(std::optional<uint32_t> uid, bool none) : uid_(uid), none_(none) {}

  std::optional<uint32_t> uid_;
  bool none_;
};

// Callers that see everybody's things beside their own.
struct ViewRules {
  bool all = false;         // everybody
  uint32_t daemon_uid = 0;  // this uid, and root
  int64_t group = -1;       // members of this group; -1: none
};

// Root and groups of a container are not those of the node: a caller of another pid namespace is not one of
// them.
inline Viewer ViewerFor(const Caller& caller, const ViewRules& rules) {
  const bool operates =
      caller.in_own_namespace && (caller.uid == 0 || caller.uid == rules.daemon_uid ||
                                  std::any_of(caller.groups.begin(), caller.groups.end(),
                                              [&rules](uint32_t group) { return group == rules.group; }));
  return rules.all || operates ? Viewer::OfAll() : Viewer::Of(caller.uid);
}

}  // namespace tandem::daemon
