// File: saved_state.h
//
// `SavedState`: the records of a journal, parsed. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "tandem/state/v1/state.pb.h"
#include "tandem/status.h"

namespace tandem::daemon {

struct SavedState {
  state::v1::Node node;
  std::map<uint64_t, state::v1::Session> sessions;
  std::map<uint64_t, std::map<uint64_t, state::v1::Launch>> launches;  // by session
  std::map<uint64_t, state::v1::Group> groups;
  std::map<uint64_t, std::map<uint64_t, state::v1::Plan>> plans;  // by group
  std::map<uint64_t, state::v1::PlanUse> plan_uses;               // by plan
  std::map<uint64_t, state::v1::Set> sets;                        // by name: the first segment's id
};

// DATA_LOSS names the record that makes no sense.
Result<SavedState> ParseState(const std::map<std::string, std::string>& records);

}  // namespace tandem::daemon
