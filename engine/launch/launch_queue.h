// File: launch_queue.h
//
// `LaunchQueue`: the launch queue of one engine. Arrivals are matched across ranks through the arrival table,
// complete launches enter the node's order log, and programs start on this GPU's lanes in the log's order.
// See order_log.h and arrival_table.h for what is shared, launch_state.h for a launch's states, docs/model
// for the protocol's model.
//
// The queue matches and decides; its parts do the rest:
//   ProgramLanes       lanes, completion word, fences, lane 0's stream
//   LaunchTiming       events, statistics, traces
//   SpeculativeLaunch  the first kernel of the launch that is expected next
//   GroupBreaker       marks and lanes of broken groups
//
// Thread rule: the engine's main thread only. No call blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/launch/group_breaker.h"
#include "engine/launch/launch.h"
#include "engine/launch/launch_listener.h"
#include "engine/launch/launch_timing.h"
#include "engine/launch/program_lanes.h"
#include "engine/launch/speculative_launch.h"
#include "engine/launch/stream_choice.h"
#include "engine/launch/word_page.h"
#include "engine/memory/memory_table.h"
#include "ipc/order_log.h"
#include "ipc/stats_area.h"
#include "kernels/backend.h"
#include "tandem/status.h"

namespace tandem::engine {

struct LaunchQueueOptions {
  int gpu = 0;
  bool speculates = true;  // first kernels may go onto lane 0 ahead of their launches
  bool replaces = false;   // an earlier engine: clients may launch plans that this engine does not have yet
  TurnLimits turn_limits;  // for lane 0, if it has two streams
};

class LaunchQueue {
 public:
  // `words`: a page that nobody else uses. The backend ends before the queue does. The queue reads `log` from
  // its head on: earlier entries concern no plan that the queue will have.
  LaunchQueue(const LaunchQueueOptions& options, Backend* backend, MemoryTable* memory, OrderLog log,
              StatsArea stats, WordPage words, std::vector<std::unique_ptr<Lane>> lanes,
              LaunchListener* listener);
  ~LaunchQueue();

  // Groups. AddGroup takes the group; ALREADY_EXISTS unless its id is free. A group is removed once it is
  // idle.
  Status AddGroup(std::unique_ptr<EngineGroup> group);
  EngineGroup* FindGroup(uint64_t id);
  // The group ends with `failure`: launches that have not started fail now, those on lanes are marked failed.
  // Poll releases their lanes once the peers have marked theirs (group_breaker.h). Later launches fail too. A
  // second break changes the reason of later launches only.
  void Break(EngineGroup* group, Failure failure);
  // A rank has left cleanly: launches that it has not arrived at fail.
  void MarkLeft(EngineGroup* group, int rank) { group->left_mask |= static_cast<uint8_t>(1u << rank); }
  bool Idle(const EngineGroup& group) const { return group.arrived == 0; }
  void RemoveGroup(uint64_t id);  // idle; its plans go with it

  // Plans. RemovePlan first fails a launch that has not started (on all ranks); true once the plan is gone.
  Status AddPlan(std::unique_ptr<InstalledPlan> plan);
  InstalledPlan* FindPlan(uint64_t id);
  bool RemovePlan(uint64_t id);

  // A rank's stream has reached a launch, or a launch came by message. It ends with a status in any case.
  void Arrive(const LaunchRequest& request);

  // Of ordered groups the queue knows all launches that a rank has made: an entry that a channel has taken
  // off its ring and whose stream has not reached it, one that never will, and a graph's.
  void NoteQueued(const LaunchEntry& entry, uint64_t session_id) { CountQueued(entry, session_id, true); }
  void NoteDropped(const LaunchEntry& entry, uint64_t session_id) { CountQueued(entry, session_id, false); }
  void NoteCaptured(const LaunchEntry& entry, uint64_t session_id);
  // Why the launch will fail, should the log name it. NOT_FOUND without the plan.
  Status NoteReason(uint64_t plan_id, uint64_t count, Failure failure);
  // The rank makes another call instead of this launch of its own: the launch fails on all ranks, and stalls
  // the group. All entries must have been taken off the rings. FAILED_PRECONDITION if this rank has made the
  // launch or a graph may make it, or the group is not ordered. NOT_FOUND.
  Status FailUnmade(uint64_t plan_id, uint64_t count);
  // This rank renews the group, and makes no launch before: launches that it has not arrived at end on all
  // ranks.
  void StallForRenewal(EngineGroup* group);
  // A renewal's first step: no launch of the group begins until Resume. True once none is under way and the
  // arrival table has this rank's counts.
  bool StopForRenewal(EngineGroup* group);
  // Its second step, after the first one on all ranks: counts go on behind those of all ranks.
  void Resume(EngineGroup* group);

  // A channel ends: what is expected of it is forgotten.
  void ChannelEnded(const Channel& channel) {
    if (started_ && started_->channel.get() == &channel) ForgetStarted();
  }
  // Keeps a channel that has been released so: releases it again once lane 0 has written the done words that
  // it was given for the channel, which come over the release. Its stream waits for later launches that
  // nobody takes any more.
  void KeepReleased(std::shared_ptr<Channel> channel);

  // Speculative launches. True while lane 0 holds no first kernel, and nothing has arrived that would start
  // first.
  bool MaySpeculate();
  // The origin of the launch that started last, until it is forgotten; null: none.
  const Origin* Started() const { return started_ ? &*started_ : nullptr; }
  void ForgetStarted() { started_.reset(); }
  // Puts the first kernel of the launch that `forecast` expects next onto lane 0. False if that cannot be,
  // and nothing has changed.
  bool Speculate(const LaunchRequest& request, std::shared_ptr<Forecast> forecast);
  // Cancels the first kernel on lane 0, if there is one: before calls that may block behind a lane, too.
  void CancelSpeculation() { NoteFatal(speculation_.Cancel()); }
  void CancelOldSpeculation(uint64_t now_ns) { NoteFatal(speculation_.CancelIfOld(now_ns)); }
  // True once lane 0 has passed the first kernel that was cancelled last: until then the kernel may still
  // look at the guard in its group's memory.
  bool SpeculationPassed() { return speculation_.Passed(); }

  // Notes programs that have ended. True if there were any.
  bool Reap();
  // For a moment in which there is nothing else to do: reads an event of a launch that has ended. True while
  // there are any.
  bool ReadEvents() { return timing_.ReadOne(!undecided_.empty(), !in_flight_.empty()); }
  // Reads the log, decides and starts what can be, releases broken lanes. True if anything happened.
  bool Poll();

  // True if anything has arrived and not ended: the engine must poll.
  bool Pending() const {
    return !undecided_.empty() || !held_.empty() || !in_flight_.empty() || !released_.empty();
  }
  // True if no lane holds a program, or a part of one. Lane 0 may still be writing the done word of the last
  // program.
  bool LanesIdle() { return in_flight_.empty() && speculation_.None(); }
  // True once the lanes have executed all that they were given: memory that lanes write may be let go, and
  // lane 0 may change its stream. Enqueues a word on idle lanes, so ask only where it matters.
  bool LanesDrained() { return LanesIdle() && lanes_.Drained(); }
  // DATA_LOSS once the log has lapped this engine, or a failure of the device: the engine must end.
  const Status& fatal() const { return fatal_; }
  OrderLog& log() { return log_; }
  bool LogHasNews() const;
  // Every plan that has a launch arrived and not ended.
  void ForEachActive(const std::function<void(const InstalledPlan&)>& visit) const;
  std::vector<int> MissingRanks(const InstalledPlan& plan) const;
  // What a launch that all ranks have arrived at waits for before it goes onto lanes; empty: nothing.
  static std::string AwaitedInput(const InstalledPlan& plan);
  std::vector<uint64_t> GroupIds() const;

 private:
  // Arriving (launch_queue.cc). Takes over slots, pins and digest that are in the plan's launch already.
  void Activate(InstalledPlan* plan, const LaunchRequest& request, uint64_t count, uint64_t now);
  // Slots, pins and digest of a launch; nothing stays pinned on an error.
  Status ResolveBindings(const InstalledPlan& plan, const LaunchRequest& request,
                         std::vector<runtime::SlotAddress>* slots,
                         std::vector<std::shared_ptr<Registration>>* pins, uint64_t* digest) const;
  // Why a launch of a plan that this engine does not have, or that is another session's, cannot be made.
  Failure UnknownPlan(const LaunchRequest& request, bool foreign) const;
  // Why the plan's next launch on this rank is refused without a number; OK: it gets one.
  Failure WhyNotCounted(const InstalledPlan& plan) const;
  void RejectArrival(const LaunchRequest& request, uint64_t generation, Failure failure);
  // The same for a launch that counts: it is reported, too.
  void RejectCounted(const LaunchRequest& request, const InstalledPlan& plan, uint64_t count,
                     const Failure& failure);
  // Makes the launch arrive; its plan is there and its session's.
  void ArriveAt(InstalledPlan* plan, const LaunchRequest& request);
  // The turn of this origin's channel ends with an arrival.
  void NoteTurn(const Origin& origin, uint64_t now);

  // Reading the log and deciding (launch_decide.cc).
  bool DrainLog();
  void Apply(const LogEntry& entry, uint64_t position);
  uint64_t FullCount(const InstalledPlan& plan, uint16_t low) const;
  // Appends a failure for launch `count` unless the log has decided it meanwhile. Reads the log up to it.
  void AppendFailure(InstalledPlan* plan, uint64_t count, LogKind kind, uint8_t ranks);
  bool DecideAll();
  bool DecideOne(InstalledPlan* plan, uint64_t now);
  bool ReadyToStart(const InstalledPlan& plan) const;
  bool Admissible(uint8_t gpu_mask) const;
  bool AppendStarts();
  void ReportLate(InstalledPlan* plan, uint64_t now);
  // Ends the launches that wait in the group, and later ones until a renewal.
  void Stall(EngineGroup* group, const Failure& why);

  // Calls in another order (launch_desync.cc).
  InstalledPlan* CountedPlan(const LaunchEntry& entry, uint64_t session_id);
  void CountQueued(const LaunchEntry& entry, uint64_t session_id, bool more);
  void PublishLaunched(const InstalledPlan& plan);
  void CountLooks();
  // A plan that `rank` has launched instead of the plan's launch, if that is certain of ranks that make all
  // calls in one order; else null.
  const InstalledPlan* LaunchedInstead(const InstalledPlan& plan, int rank) const;
  // The rank, as a bit, that is certain to have made another call; 0: none is.
  uint8_t FindDesync(InstalledPlan* plan, uint8_t missing, uint64_t now);
  // "; rank 1 waits for rank 0 in launch 7 of plan 3, …": another launch of the group in which `rank` waits;
  // empty if none is known.
  std::string WaitsIn(const InstalledPlan& plan, int rank) const;
  Failure FailureByLog(const InstalledPlan& plan, uint64_t count, const LogEntry& entry) const;
  uint8_t MissingMask(const InstalledPlan& plan) const;  // the ranks of MissingRanks
  uint8_t MismatchedRanks(const InstalledPlan& plan) const;
  // Ends a launch that has arrived and not started. `started`: whether a peer may have started it; none:
  // unknown.
  void Refuse(InstalledPlan* plan, Failure failure, std::optional<bool> started = false);
  void RemoveFromUndecided(InstalledPlan* plan);
  void PublishProgress();
  // Writes the statistics of the waiting launches.
  void PublishWaiting();

  // Starting and ending (launch_start.cc).
  void Start(InstalledPlan* plan);
  void StartOnLanes(InstalledPlan* plan);
  // Starts held launches whose chunks have all come; ends those whose time is up.
  bool ServeHeld();
  // Ends a held launch without running it.
  void RefuseHeld(InstalledPlan* plan, const Failure& failure);
  Status EnqueueOnLanes(InstalledPlan* plan);
  // Marks a launch on lanes as failed: status record first, before any lane is released.
  void MarkFailed(InstalledPlan* plan, Failure failure);
  // Ends the plan's launch by this event. `observed`: of a launch whose lanes have ended, else null.
  void End(InstalledPlan* plan, LaunchEvent event, const Failure& failure, uint64_t end_ns,
           const LaunchObserved* observed = nullptr);
  // Breaks the group of the program that the lanes run now if that runs for too long. True if it did.
  bool EndOverdue();
  std::string AwaitedText(const InstalledPlan& plan, int* who_rank) const;
  // Breaks the group of a launch on lanes, here and by the log and tandemd everywhere.
  void LoseGroup(InstalledPlan* plan, Failure failure);
  bool ServeBroken(uint64_t now);
  bool ServeReleased();

  void NoteFatal(Status status) {
    if (!status.ok() && fatal_.ok()) fatal_ = std::move(status);
  }

  LaunchQueueOptions options_;
  Backend* backend_;
  MemoryTable* memory_;
  OrderLog log_;
  StatsArea stats_;
  LaunchListener* listener_;
  ProgramLanes lanes_;
  LaunchTiming timing_;
  SpeculativeLaunch speculation_;
  GroupBreaker breaker_;

  std::unordered_map<uint64_t, std::unique_ptr<EngineGroup>> groups_;
  // By the low 24 bits of the id, as the log names plans.
  std::unordered_map<uint32_t, std::unique_ptr<InstalledPlan>> plans_;
  // Why plans of broken groups are gone, for launches that were under way to them.
  std::unordered_map<uint64_t, Failure> tombstones_;
  std::deque<uint64_t> tombstone_order_;

  uint64_t read_position_ = 0;
  struct RecentStart {
    uint64_t position;
    uint8_t gpu_mask;
  };
  std::deque<RecentStart> recent_starts_;
  std::vector<InstalledPlan*> undecided_;  // their launches are kArrived
  std::vector<InstalledPlan*> held_;       // their launches are kHeld
  // Their launches are kStarted or kFailing, in the order of their tickets.
  std::deque<InstalledPlan*> in_flight_;
  uint64_t front_since_ns_ = 0;             // when the first in flight became that; 0: it started as such
  std::vector<InstalledPlan*> candidates_;  // scratch
  std::optional<Origin> started_;           // see Started
  struct ReleasedChannel {
    uint64_t fence;
    std::shared_ptr<Channel> channel;
  };
  std::vector<ReleasedChannel> released_;  // see KeepReleased
  uint64_t published_progress_ = ~uint64_t{0};
  bool published_waiting_ = false;  // launches wait, as the statistics have it
  Status fatal_;
};

}  // namespace tandem::engine
