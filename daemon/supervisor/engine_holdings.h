// File: engine_holdings.h
//
// `EngineHoldings`: the things that a running engine has from an earlier tandemd, by its own account, with
// the descriptors that it kept (docs/restart.md).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/unique_fd.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {

struct EngineHoldings {
  // One group, with its plans' ids and the workspace that was set last.
  struct HeldGroup {
    uint64_t generation = 0;
    std::set<uint64_t> plans;
    std::string workspace;  // a serialised engine::v1::SetWorkspace; empty: none
  };
  using Kind = engine::v1::Held::Kind;

  uint64_t generation = 0;  // of the engine
  std::set<uint64_t> segments, registrations, channels;
  std::map<uint64_t, HeldGroup> groups;
  std::map<std::pair<Kind, uint64_t>, std::vector<SharedFd>> fds;

  // The descriptors of one thing; none if it is not there.
  std::vector<SharedFd> FdsOf(Kind kind, uint64_t id) const {
    const auto found = fds.find({kind, id});
    return found == fds.end() ? std::vector<SharedFd>() : found->second;
  }
};

// By GPU; none: no engine is there.
using AllHoldings = std::vector<std::optional<EngineHoldings>>;

}  // namespace tandem::daemon
