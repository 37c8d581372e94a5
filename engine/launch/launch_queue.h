// File: launch_queue.h
//
// The launch queue of one engine: arrivals are matched across ranks through the arrival table, complete
// launches enter the node's order log, and programs start on this GPU's lanes in the log's order. See
// order_log.h and arrival_table.h for what is shared, docs/model for the protocol's model.
//
//   Arrive ──▶ undecided ──(all ranks there: START)──▶ on lanes ──(completion word)──▶ ended
//                  └──(FAIL in the log, break, leave)──▶ ended by the CPU
//
// Thread rule: the engine's main thread only. No call blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/launch/launch.h"
#include "engine/launch/stream_choice.h"
#include "engine/launch/word_page.h"
#include "engine/memory_table.h"
#include "ipc/order_log.h"
#include "ipc/stats_area.h"
#include "kernels/backend.h"
#include "tandem/status.h"

namespace tandem::engine {

// What the queue tells tandemd. Called from the queue's calls; must not call back.
class LaunchListener {
 public:
  virtual ~LaunchListener() = default;
  virtual void OnLaunchDone(uint64_t launch_id, const Status& status) = 0;
  virtual void OnLaunchFailed(const Plan& plan, uint64_t count, const Status& status) = 0;
  // A launch that is on lanes cannot end, so that its group is broken here and must be on all engines.
  // OnLaunchFailed is called for it as well.
  virtual void OnGroupLost(const Plan& plan, uint64_t count, const Status& status) = 0;
  virtual void OnLate(const Plan& plan, const Launch& launch, const std::vector<int>& missing,
                      double seconds) = 0;
  // A broken group's lanes cannot be let go: this rank's engine lives, and has not marked its launches failed
  // for a second.
  virtual void OnPeerSilent(const Group& group, int rank) = 0;
};

struct LaunchQueueOptions {
  int gpu = 0;
  bool prelaunch = true;  // whether anything goes onto a lane ahead of its launch
  bool replaces =
      false;  // an earlier engine: clients may launch plans that this one has not been told of yet
  TurnLimits turn_limits;  // for lane 0, if it has two streams
};

class LaunchQueue {
 public:
  // `words`: a page of its own. The backend ends before the queue does. It reads `log` from its head on: what
  // is there already concerns no plan that it will have.
  LaunchQueue(const LaunchQueueOptions& options, Backend* backend, MemoryTable* memory, OrderLog log,
              StatsArea stats, WordPage words, std::vector<std::unique_ptr<Lane>> lanes,
              LaunchListener* listener);
  ~LaunchQueue();

  // Groups. AddGroup takes the group; ALREADY_EXISTS unless its id is free. A group is removed once it is
  // idle.
  Status AddGroup(std::unique_ptr<Group> group);
  Group* FindGroup(uint64_t id);
  // The group ends with `failure`: launches that have not started fail now, those on lanes are marked failed.
  // Poll lets their lanes go once the peers have marked theirs (group_break.cc). Later launches fail too. A
  // second break changes nothing but the reason of later launches.
  void Break(Group* group, Failure failure);
  // A rank has left cleanly: launches that it has not arrived at fail with `text`.
  void MarkLeft(Group* group, int rank);
  bool Idle(const Group& group) const { return group.arrived == 0; }
  void RemoveGroup(uint64_t id);  // idle; its plans go with it

  // Plans. RemovePlan first fails a launch that has not started (on all ranks); true once the plan is gone.
  Status AddPlan(std::unique_ptr<Plan> plan);
  Plan* FindPlan(uint64_t id);
  bool RemovePlan(uint64_t id);

  // A rank's stream has reached a launch (or a launch came by message). Whatever is wrong with it, it ends
  // with a status.
  void Arrive(const LaunchRequest& request);

  // Parking (parking.cc). True while launches may be offered at all: one group, which wants it.
  bool MayOffer() const;
  // Offers a channel's next launch, not arrived yet, for parking: it will be on the lanes when all ranks have
  // offered it. False if it cannot be parked, and nothing has changed. It arrives by Arrive or, once parked,
  // without a call.
  bool Offer(const LaunchRequest& request);
  // Whether launches are offered: not while commands wait for launches to end. Takes back what is offered
  // where they are not.
  void AllowOffers(bool allow) {
    may_offer_ = allow;
    if (!allow) RevokeOffers();
  }
  // Takes back this engine's offers that have not been parked: before something comes beside which nothing
  // may be. They arrive and start as launches do that were never offered.
  void RevokeOffers();
  // True while a parked launch waits on the lanes for ranks: nothing may block behind it.
  bool HoldsParked() const;
  // Launches of other groups than this one (0: of all) that are parked and wait for ranks end by
  // DEADLINE_EXCEEDED: what they hold up waits no longer.
  void EndParkedBeside(uint64_t group_id);
  // A channel ends: launches of its that are offered or parked, and have not arrived, never will.
  void ChannelEnded(const Channel& channel) {
    if (started_ && started_->channel.get() == &channel) ForgetStarted();
    AbandonUnarrived(nullptr, &channel, LogKind::kFailRefused);
  }
  // Why launches of this plan are not parked for now; empty where they may be.
  std::string WhyNotParked(const Plan& plan) const;

  // Prelaunching (prelaunch.cc). True while nothing is on the lanes ahead of its launch, and nothing has
  // arrived that would start first.
  bool MayPrelaunch() const;
  // Where the launch came from that started last, until it is forgotten; null: none has.
  const Origin* Started() const { return started_ ? &*started_ : nullptr; }
  void ForgetStarted() { started_.reset(); }
  // Puts the head of the launch that `forecast` expects next onto lane 0. False if that cannot be, and
  // nothing has changed.
  bool Prelaunch(const LaunchRequest& request, std::shared_ptr<Forecast> forecast);
  // Calls off what is on lane 0 ahead of its launch, if anything is: before calls that may block behind a
  // lane, too.
  void CallOff();
  void CallOffIfForgotten(uint64_t now);
  // True once the last head that was called off has left lane 0: until then it may still look at the guard in
  // its group's memory.
  bool HeadsPassed() const;

  // Notes programs that have ended. True if there were any.
  bool Reap();
  // For a moment in which there is nothing else to do: reads an event or two of launches that have ended.
  // True while there are any.
  bool ReadEvents();
  // Reads the log, decides and starts what can be, releases broken lanes. True if anything happened.
  bool Poll();

  // True if anything has arrived and not ended: the engine must poll.
  bool Pending() const { return !undecided_.empty() || !in_flight_.empty() || !held_arrivals_.empty(); }
  // True if no lane holds a program, or a part of one.
  bool LanesIdle() const;
  // DATA_LOSS once the log has lapped this engine, which then must end.
  const Status& fatal() const { return fatal_; }
  OrderLog& log() { return log_; }
  bool LogHasNews() const;
  // Every plan that has a launch arrived and not ended.
  void ForEachActive(const std::function<void(const Plan&)>& visit) const;
  std::vector<int> MissingRanks(const Plan& plan) const;
  std::vector<uint64_t> GroupIds() const;

 private:
  // Reading the log.
  bool DrainLog();
  void Apply(const LogEntry& entry, uint64_t position);
  uint64_t FullCount(const Plan& plan, uint16_t low) const;
  // Appends a failure for launch `count` unless the log has decided it meanwhile. Reads the log up to it.
  void AppendFailure(Plan* plan, uint64_t count, LogKind kind, uint8_t ranks);

  // Deciding.
  bool DecideOne(Plan* plan, uint64_t now);
  bool ReadyToStart(const Plan& plan) const;
  bool Admissible(uint8_t gpu_mask) const;
  bool AppendStarts();
  void ReportLate(Plan* plan, uint64_t now);
  uint8_t MissingMask(const Plan& plan) const;  // the ranks of MissingRanks
  uint8_t MismatchedRanks(const Plan& plan) const;

  // Starting and ending.
  void Start(Plan* plan, bool parked);
  Status EnqueueOnLanes(Plan* plan);
  // What a launch with this epoch and these slots is enqueued with, without events, guard, and what is known
  // of the lanes.
  static LaunchContext ContextOf(const Plan& plan, uint64_t epoch, std::span<const SlotAddress> slots);
  // True if a plan's launch of that number is timed by events.
  static bool IsTimed(uint64_t launch);
  // Whether it is timed step by step too.
  bool TimesSteps(const Plan& plan, uint64_t launch) const;
  Result<TimingEvents> TakeEvents();
  void GiveBack(TimingEvents events);
  // Events for the steps of a launch that is to be sampled; else none.
  Status PrepareStepEvents(Plan* plan);
  // What is known of a launch without its events, whose end has been seen just now.
  LaunchObserved Observe(const Launch& launch) const;
  // launch_events.cc
  void ReadStep(EndedLaunch& ended);
  void FinishTiming(EndedLaunch ended);
  void ReadAllEvents(const Plan& plan);
  // `started`: whether a peer may have started the launch.
  void FailUndecided(Plan* plan, Failure failure, std::optional<bool> started = false);
  // `observed`: of a launch whose lanes have ended, else null. If it was timed, its events are read later.
  void End(Plan* plan, const Failure& failure, uint64_t end_ns, const LaunchObserved* observed = nullptr);
  // Tells the origin: status record and, if `by_cpu`, the done value.
  void PublishOutcome(const Origin& origin, uint64_t generation, const Failure& failure);
  void CompleteByCpu(const Origin& origin, const Failure& failure);
  // Makes the plan's active launch from `request`, not arrived; its slots, pins and digest are there already.
  void Activate(Plan* plan, const LaunchRequest& request, uint64_t count);
  void SetArrived(Plan* plan, uint64_t now);
  // Slots, pins and digest of a launch; nothing stays pinned on an error.
  Status ResolveBindings(const Plan& plan, const LaunchRequest& request, std::vector<SlotAddress>* slots,
                         std::vector<std::shared_ptr<Registration>>* pins, uint64_t* digest) const;
  Status ResolveBindings(Plan* plan, const LaunchRequest& request) {
    Launch& launch = plan->active;
    return ResolveBindings(*plan, request, &launch.slots, &launch.pins, &launch.digest);
  }
  // Why a launch of a plan that this engine does not have, or that is another session's, cannot be made.
  Failure UnknownPlan(const LaunchRequest& request, bool foreign) const;
  // Why the plan's next launch on this rank is refused without a number; OK: it gets one.
  Failure WhyNotCounted(const Plan& plan) const;
  void RejectArrival(const LaunchRequest& request, uint64_t generation, Failure failure);
  void RemoveFromUndecided(Plan* plan);

  // Arrivals that wait for this engine to know of an end that their client knows of already
  // (held_arrivals.cc).
  static bool SaysDone(const Launch& launch);
  bool MustHold(const Plan& plan) const;
  void Hold(const LaunchRequest& request);
  // Lets them arrive in order, as far as they can now. True if any did.
  bool ArriveHeld();
  Failure FailureOf(const Plan& plan, uint64_t count, const LogEntry& entry) const;

  // Broken groups.
  void AppendBreak(Group* group);
  // True once no peer can end a launch with OK any more: each has marked its launches failed (and has come to
  // `stage`, see ArrivalTable::SetBroken), or its process has ended.
  bool PeersMarked(Group* group, uint64_t now, int stage);
  void ServeLanesOfBroken(Group* group, uint64_t now);
  void ReleaseLanes(Group* group, uint64_t now);
  bool ServeBroken(uint64_t now);
  // Breaks the group of the program that the lanes run now if that runs for too long. True if it did.
  bool EndOverdue();
  std::string AwaitedText(const Plan& plan, int* who_rank) const;
  // Breaks the group of a launch on lanes, here and by the log and tandemd everywhere.
  void LoseGroup(Plan* plan, Failure failure);

  // Prelaunching.
  static Word* CallOffWord(const Group& group, uint64_t turn);
  // Lets the head of this launch go if it is on lane 0, and calls off another's.
  bool UsePrelaunched(Plan* plan, bool parked);

  // Lane 0's stream. Tells the choice of a turn, if an arrival of this origin ends one.
  void NoteTurn(const Origin& origin, uint64_t now);
  // True while lane 0 is to change its stream: nothing goes onto it ahead, so that it comes to stand still.
  bool WantsOtherStream() const { return stream_choice_ && stream_choice_->WantsSwitch(); }
  // Changes it if that is wanted and the lanes hold nothing.
  void ServeStreamChoice();

  // Parking.
  Word* PassedWord(uint64_t ticket) const;
  Word* PermitWord(uint64_t ticket) const;
  static Word* GuardWord(const Group& group);
  void ArriveOffered(Plan* plan);
  void WithdrawOffer(Plan* plan);
  void WithdrawOffers(Group* group);
  void RevokeOffer(Plan* plan, uint64_t count);
  // Ends an offer for all ranks. `comes`: its rank may still arrive, and hears of it then.
  void RefuseOffer(Plan* plan, LogKind kind, bool comes);
  // Ends what is offered or parked, of a group or of a channel, and has not arrived.
  void AbandonUnarrived(const Group* group, const Channel* channel, LogKind kind);
  bool ReadyToPark(const Plan& plan) const;
  void TakeForParking(Plan* plan);
  Status EnqueueParkingWaits(const Plan& plan);
  void LeaveParking(Plan* plan);
  bool ServeParked(uint64_t now);
  // Asks by the log that a parked launch is held where its rank has not arrived, and ends by this failure.
  void TakeBack(Plan* plan, LogKind kind, uint8_t ranks);
  bool ServeTakenBack(Plan* plan, uint64_t now);
  void EndForTheNext(Plan* plan, const Plan& next, uint64_t now);
  // Work of launches up to `epoch` that has not begun does nothing from now on. False if the device refuses.
  bool RaiseGuard(const Group& group, uint64_t epoch);
  // Lets a parked launch's lane pass as if its rank had arrived.
  void LetGo(Launch& launch);
  // True while a parked launch of the group waits on the lanes for ranks.
  bool HoldsParked(const Group& group) const;
  // True once no parked launch of a broken group holds the lanes.
  bool LetParkedGo(Group* group, uint64_t now);
  void PublishProgress();

  LaunchQueueOptions options_;
  Backend* backend_;
  MemoryTable* memory_;
  OrderLog log_;
  StatsArea stats_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<Executor> executor_;
  LaunchListener* listener_;

  std::unordered_map<uint64_t, std::unique_ptr<Group>> groups_;
  std::unordered_map<uint32_t, std::unique_ptr<Plan>>
      plans_;  // by the low 24 bits of the id, as the log names them
  // Why plans of broken groups are gone, for launches that were under way to them.
  std::unordered_map<uint64_t, Failure> tombstones_;
  std::deque<uint64_t> tombstone_order_;

  uint64_t read_position_ = 0;
  struct RecentStart {
    uint64_t position;
    uint8_t gpu_mask;
  };
  std::deque<RecentStart> recent_starts_;
  std::vector<Plan*> undecided_;
  std::deque<Plan*> in_flight_;
  std::deque<HeldArrival> held_arrivals_;
  int parked_ = 0;  // of them, those that were parked
  bool may_offer_ = true;
  uint64_t front_since_ns_ = 0;    // when the first of them became that; 0: it started as such
  std::vector<Plan*> candidates_;  // scratch
  WordPage words_;
  Word* completion_ =
      nullptr;  // written by lane 0 after each program; parking.cc and prelaunch.cc use more of the page
  uint64_t next_ticket_ = 0;
  std::optional<StreamChoice> stream_choice_;  // none: lane 0 has one stream
  std::optional<Prelaunched> prelaunched_;
  std::optional<Origin> started_;
  uint64_t next_turn_ = 0,
           called_off_ = 0;  // of heads: the last one's, and the last one's that was called off
  std::vector<TimingEvents> free_events_;
  std::deque<EndedLaunch> untimed_;  // their plans live
  uint64_t busy_ns_ = 0, busy_until_ns_ = 0;
  uint64_t published_progress_ = ~uint64_t{0};
  Status fatal_;
};

}  // namespace tandem::engine
