// Parking: a launch whose ranks have all pushed it goes onto the lanes before their streams have reached it,
// behind memory operations that wait for them. docs/architecture.md has the protocol, docs/model/parking.pml
// its model.
//
//   lane 0: wait request · write passed · wait permit · tell the peers · wait for theirs · program · done ·
//   completion
//
// Until the permit is withdrawn the lane asks nobody. Taking a launch back runs its program as one that does
// nothing: the signals are exchanged, the guard leaves out all else, so that words and epochs stay alike on
// all ranks.
#include <algorithm>
#include <bit>

#include "engine/launch/launch_queue.h"
#include "ipc/channel_layout.h"

namespace tandem::engine {
namespace {

// A lane that has written "passed" before it looked at the permit is seen to have done so this much later at
// the latest.
constexpr uint64_t kHoldAfterNs = 1'000'000;
// How long all engines may take to agree that a launch is taken back. One that stands still keeps the others'
// lanes.
constexpr uint64_t kTakeBackPatienceNs = 2'000'000'000;
// In the engine's own page of words, behind the completion word: 64 bytes apart.
constexpr size_t kFirstParkingWord = 64;
constexpr size_t kParkingSlots = 8;  // more than programs on the lanes

bool Reached(uint64_t value, uint64_t wanted) { return static_cast<int64_t>(value - wanted) >= 0; }

}  // namespace

Word* LaunchQueue::PassedWord(uint64_t ticket) const {
  return &words_[kFirstParkingWord + ticket % kParkingSlots * 16];
}

Word* LaunchQueue::PermitWord(uint64_t ticket) const { return PassedWord(ticket) + 8; }

Word* LaunchQueue::GuardWord(const Group& group) {
  return group.signals[static_cast<size_t>(group.rank)] + group.rank * plan::kSignalsPerWriter + kGuardSignal;
}

void LaunchQueue::TakeForParking(Plan* plan) {
  Launch& launch = plan->active;
  launch.parked.on_lanes = true;
  ++parked_;
  if (launch.arrived) return;
  Channel& channel = *launch.origin.channel;
  if (!channel.waiting.empty() && channel.waiting.front().sequence == launch.origin.id)
    channel.waiting.pop_front();
  channel.offered = false;
  ++channel.under_way;
}

Status LaunchQueue::EnqueueParkingWaits(const Plan& plan) {
  const Launch& launch = plan.active;
  const Group& group = *plan.group;
  Lane& lane = *lanes_[0];
  PermitWord(launch.ticket)->store(launch.ticket, std::memory_order_seq_cst);
  TANDEM_RETURN_IF_ERROR(lane.WaitWord(launch.origin.channel->consumer.request(), launch.origin.id));
  TANDEM_RETURN_IF_ERROR(lane.WriteWord(PassedWord(launch.ticket), launch.ticket));
  TANDEM_RETURN_IF_ERROR(lane.WaitWord(PermitWord(launch.ticket), launch.ticket));
  const int own = group.rank;
  for (int peer = 0; peer < group.world_size; ++peer) {
    if (peer == own) continue;
    Word* word = group.signals[static_cast<size_t>(peer)] + own * plan::kSignalsPerWriter + kArrivedSignal;
    TANDEM_RETURN_IF_ERROR(lane.WriteWord(word, launch.epoch));
  }
  for (int peer = 0; peer < group.world_size; ++peer) {
    if (peer == own) continue;
    const Word* word =
        group.signals[static_cast<size_t>(own)] + peer * plan::kSignalsPerWriter + kArrivedSignal;
    TANDEM_RETURN_IF_ERROR(lane.WaitWord(word, launch.epoch));
  }
  return Status::Ok();
}

void LaunchQueue::LeaveParking(Plan* plan) {
  Launch& launch = plan->active;
  --parked_;
  if (launch.parked.stood_in) {
    // The word is the stream's again. Its client keeps the pages until it has passed
    // (StreamChannel::Drained). Whether it has, nobody can tell: should it have come since LetGo, it tells so
    // by its next launch, and until then the pages stay.
    uint64_t written = launch.origin.id;
    launch.origin.channel->consumer.request()->compare_exchange_strong(written, launch.origin.id - 1);
  }
  if (!launch.parked.running) launch.start_ns = NowNs();  // it has begun since this thread last looked
  if (launch.arrived) return;
  // It was through before this thread looked, or it was taken back: for the peers it has arrived.
  launch.arrive_ns = NowNs();
  plan->group->arrivals.Arrive(plan->index, plan->group->rank, launch.digest, launch.count);
}

bool LaunchQueue::ServeParked(uint64_t now) {
  bool any = false;
  for (size_t i = 0; i < in_flight_.size(); ++i) {
    Plan* plan = in_flight_[i];
    Launch& launch = plan->active;
    Parked& parked = launch.parked;
    Group& group = *plan->group;
    if (!parked.Waits() || group.broken.has_value()) continue;
    const bool holding = parked.held || (parked.withdrawn_ns != 0 && !parked.tried);
    if (!launch.arrived && !holding && Reached(launch.origin.channel->consumer.Request(), launch.origin.id)) {
      SetArrived(plan, now);
      group.arrivals.Arrive(plan->index, group.rank, launch.digest, launch.count);
      any = true;
    }
    if (launch.arrived) {
      const uint8_t missing = MissingMask(*plan);
      if (missing == 0) {
        parked.running = true;
        launch.start_ns = now;
        any = true;
        continue;
      }
      if (uint8_t left = missing & group.left_mask; left != 0) {
        TakeBack(plan, LogKind::kFailLeft, left);
      } else if (now >= launch.deadline_ns) {
        TakeBack(plan, LogKind::kFailDeadline, missing);
      } else {
        ReportLate(plan, now);
      }
    }
    // Only the first on the lanes: a guard would reach those before it too.
    if (i > 0) continue;
    if (in_flight_.size() > 1 && !parked.taken_back.has_value()) EndForTheNext(plan, *in_flight_[1], now);
    if (!parked.taken_back.has_value()) continue;
    any |= ServeTakenBack(plan, now);
    // From when its turn came: behind another launch nothing was asked of anybody.
    if (now < std::max(parked.taken_back_ns, front_since_ns_) + kTakeBackPatienceNs) continue;
    // Some engine neither holds it nor says that it is through.
    LoseGroup(plan, FailureOf(*plan, launch.count, *parked.taken_back));
    return true;
  }
  return any;
}

// What is behind a parked launch on the lanes (a group's or a channel's that came later) waits for its ranks
// no longer than it may run itself.
void LaunchQueue::EndForTheNext(Plan* plan, const Plan& next, uint64_t now) {
  const Launch& behind = next.active;
  if (behind.parked.Waits() || now < behind.start_ns || now - behind.start_ns < behind.run_limit_ns) return;
  TakeBack(plan, LogKind::kFailDeadline, MissingMask(*plan));
}

void LaunchQueue::EndParkedBeside(uint64_t group_id) {
  std::vector<Plan*> parked;
  for (Plan* plan : in_flight_) {
    if (plan->active.parked.Waits() && plan->group->id != group_id && !plan->group->broken.has_value())
      parked.push_back(plan);
  }
  for (Plan* plan : parked) {
    // All there: it runs, and only has not been seen to.
    if (const uint8_t missing = MissingMask(*plan); missing != 0)
      TakeBack(plan, LogKind::kFailDeadline, missing);
  }
}

void LaunchQueue::TakeBack(Plan* plan, LogKind kind, uint8_t ranks) {
  const Launch& launch = plan->active;
  LogEntry entry{.kind = kind,
                 .mask = ranks,
                 .plan = static_cast<uint32_t>(plan->id) & kLogIdMask,
                 .count = static_cast<uint16_t>(launch.count)};
  while (fatal_.ok() && !launch.parked.taken_back.has_value()) {
    if (log_.TryAppend(read_position_, entry)) {
      DrainLog();
      return;
    }
    DrainLog();
  }
}

bool LaunchQueue::ServeTakenBack(Plan* plan, uint64_t now) {
  Launch& launch = plan->active;
  Parked& parked = launch.parked;
  Group& group = *plan->group;
  if (!launch.arrived && !parked.tried) {
    Word* permit = PermitWord(launch.ticket);
    if (parked.withdrawn_ns == 0) {
      permit->store(launch.ticket - 1, std::memory_order_seq_cst);
      parked.withdrawn_ns = now;
      return true;
    }
    if (Reached(PassedWord(launch.ticket)->load(std::memory_order_seq_cst), launch.ticket)) {
      permit->store(launch.ticket, std::memory_order_seq_cst);  // too late: it has arrived
      parked.tried = true;
      return true;
    }
    if (now - parked.withdrawn_ns < kHoldAfterNs) return false;
    parked.tried = parked.held = true;
    group.arrivals.SetHeld(plan->index, group.rank, launch.count);
  }
  if (!parked.acknowledged) {
    bool held = false;
    for (int rank = 0; rank < group.world_size; ++rank) {
      held = held || group.arrivals.Held(plan->index, rank) == launch.count;
    }
    // While nobody is held, all have passed or have yet to try.
    if (!held) return false;
    // Status first: the lanes come through with it.
    launch.failure = FailureOf(*plan, launch.count, *parked.taken_back);
    listener_->OnLaunchFailed(*plan, launch.count, launch.failure.status);
    PublishOutcome(launch.origin, group.generation, launch.failure);
    if (!RaiseGuard(group, launch.epoch)) return true;
    parked.acknowledged = true;
    group.arrivals.SetAcknowledged(plan->index, group.rank, launch.count);
    return true;
  }
  if (!parked.held) return false;
  if (!parked.let_go) {
    for (int rank = 0; rank < group.world_size; ++rank) {
      if (group.arrivals.Acknowledged(plan->index, rank) != launch.count) return false;
    }
    parked.let_go = true;
  }
  LetGo(launch);
  return false;
}

bool LaunchQueue::RaiseGuard(const Group& group, uint64_t epoch) {
  Status raised = backend_->StoreWord(GuardWord(group), epoch);
  if (raised.ok()) {
    // Not before it is there: a store to device memory has only been enqueued.
    Result<uint64_t> value = backend_->LoadWord(GuardWord(group));
    raised = value.status();
    if (value.ok() && !Reached(*value, epoch)) raised = Internal("the guard does not hold its value");
  }
  if (!raised.ok() && fatal_.ok()) fatal_ = raised.WithContext("taking a parked launch back");
  return raised.ok();
}

void LaunchQueue::LetGo(Launch& launch) {
  // In the stream's place. Should the stream still write an earlier sequence, it writes this one next.
  Word* request = launch.origin.channel->consumer.request();
  uint64_t current = request->load(std::memory_order_relaxed);
  while (!Reached(current, launch.origin.id)) {
    if (!request->compare_exchange_weak(current, launch.origin.id)) continue;
    launch.parked.stood_in = true;
    break;
  }
  PermitWord(launch.ticket)->store(launch.ticket, std::memory_order_seq_cst);
}

bool LaunchQueue::HoldsParked(const Group& group) const {
  return std::any_of(in_flight_.begin(), in_flight_.end(),
                     [&](const Plan* plan) { return plan->group == &group && plan->active.parked.Waits(); });
}

// Ranks that have not arrived must do nothing, and a peer must not take their nothing for the launch: first
// all engines mark theirs failed, then all raise their guards, then the lanes go.
bool LaunchQueue::LetParkedGo(Group* group, uint64_t now) {
  std::vector<Launch*> waiting;
  for (Plan* plan : in_flight_) {
    if (plan->group == group && plan->active.parked.Waits()) waiting.push_back(&plan->active);
  }
  if (group->broken_stage == 1) {
    // None is left if they have come through by themselves.
    if (!waiting.empty() && (!PeersMarked(group, now, 1) || !RaiseGuard(*group, waiting.back()->epoch)))
      return false;
    group->broken_stage = 2;
    group->arrivals.SetBroken(group->rank, 2);
  }
  if (waiting.empty()) return true;
  if (!PeersMarked(group, now, 2)) return false;
  for (Launch* launch : waiting) LetGo(*launch);
  return true;
}

}  // namespace tandem::engine
