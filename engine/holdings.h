// File: holdings.h
//
// `Holdings`: the things that an engine has from tandemd, with their descriptors, for the next tandemd
// (docs/restart.md). It follows the commands that have been executed, and sends all of it as an inventory.
//
// Thread rule: the engine's main thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/unique_fd.h"
#include "engine/engine_link.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::engine {

class Holdings {
 public:
  // The build that the inventory names.
  void SetBuild(std::string build) { build_ = std::move(build); }
  // Starts to hold what the engine receives. Descriptors: the order log, the stats area, the journal.
  void Begin(const v1::Start& start, std::vector<UniqueFd> fds);
  bool Holds() const { return begun_; }
  void SetReady(const v1::Ready& ready) { ready_ = ready; }

  // Copies of a command's descriptors, for Note; none while it does not hold.
  std::vector<UniqueFd> CopiesOf(const std::vector<UniqueFd>& fds) const;
  // `command` has been executed; `copies` are the copies of the command's descriptors.
  void Note(const v1::Command& command, std::vector<UniqueFd> copies);
  // The engine has made a segment itself.
  void NoteSegment(uint64_t segment_id, int fd);
  // A plan that was added and could not be kept.
  void ForgetPlan(uint64_t group_id, uint64_t plan_id);
  // Reports that the last tandemd may not have read: the next one gets them again.
  void NoteLaunchDone(const v1::Message& done);
  void NoteGroupLost(const v1::Message& lost);
  // A stall is reported again until the group is renewed.
  void NoteGroupStalled(const v1::Message& stalled);
  void NoteGroupRenewed(uint64_t group_id);

  // The inventory, then the reports.
  void SendTo(EngineLink& link) const;

 private:
  using Key = std::pair<v1::Held::Kind, uint64_t>;
  void Keep(Key key, std::vector<UniqueFd> fds);

  bool begun_ = false;
  std::string build_;
  v1::Start start_;
  v1::Ready ready_;
  std::vector<UniqueFd> node_fds_;
  std::set<uint64_t> segments_, registrations_, channels_;
  std::map<uint64_t, v1::HeldGroup> groups_;
  std::map<uint64_t, std::set<uint64_t>> plans_;  // by group
  std::map<uint64_t, uint64_t> group_of_plan_;
  std::map<Key, std::vector<UniqueFd>> fds_;
  std::map<uint64_t, v1::Message> lost_;     // by group
  std::map<uint64_t, v1::Message> stalled_;  // by group
  std::deque<v1::Message> done_;
};

}  // namespace tandem::engine
