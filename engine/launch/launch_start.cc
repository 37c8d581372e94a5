// Deciding and starting: who is missing, what may enter the order log, how a program gets onto the lanes.
#include <algorithm>
#include <bit>
#include <utility>

#include "engine/launch/launch_queue.h"
#include "engine/launch/profiler_range.h"
#include "ipc/channel_layout.h"

namespace tandem::engine {
namespace {

constexpr int kMaxProgramsPerGpu = 2;
// Launches 1, 2, 4, 8 … of a plan, then every so many, are timed by events: their steps, and the launch as a
// whole. One whose steps are is not prelaunched, and each step's events part it from the next: measured on
// four H200s, 40 to 250 µs.
constexpr uint64_t kTimeStepsEvery = 1024;
constexpr uint64_t kTimeEvery = 32;
constexpr size_t kMaxSampledSteps = 256;

bool IsSampled(uint64_t launch, uint64_t every) { return std::has_single_bit(launch) || launch % every == 0; }

}  // namespace

bool LaunchQueue::IsTimed(uint64_t launch) { return IsSampled(launch, kTimeEvery); }

bool LaunchQueue::TimesSteps(const Plan& plan, uint64_t launch) const {
  return stats_.traces() && IsSampled(launch, kTimeStepsEvery) &&
         plan.program->step_count() <= kMaxSampledSteps;
}

std::vector<int> LaunchQueue::MissingRanks(const Plan& plan) const {
  std::vector<int> missing;
  for (int rank = 0; rank < plan.group->world_size; ++rank) {
    if (plan.group->arrivals.Count(plan.index, rank) < plan.active.count) missing.push_back(rank);
  }
  return missing;
}

uint8_t LaunchQueue::MissingMask(const Plan& plan) const {
  uint8_t missing = 0;
  for (int rank = 0; rank < plan.group->world_size; ++rank) {
    if (plan.group->arrivals.Count(plan.index, rank) < plan.active.count)
      missing |= static_cast<uint8_t>(1u << rank);
  }
  return missing;
}

uint8_t LaunchQueue::MismatchedRanks(const Plan& plan) const {
  const ArrivalTable& arrivals = plan.group->arrivals;
  uint8_t mask = 0;
  for (int rank = 1; rank < plan.group->world_size; ++rank) {
    if (arrivals.Digest(plan.index, rank) != arrivals.Digest(plan.index, 0))
      mask |= static_cast<uint8_t>(1u << rank);
  }
  return mask;
}

bool LaunchQueue::ReadyToStart(const Plan& plan) const {
  const Group& group = *plan.group;
  for (int rank = 0; rank < group.world_size; ++rank) {
    // Beyond our launch: it has been decided, and the log says how.
    if (group.arrivals.Count(plan.index, rank) != plan.active.count) return false;
    if (plan.uses_bulk && group.arrivals.BulkEnded(rank) < group.last_bulk_epoch) return false;
  }
  return true;
}

bool LaunchQueue::Admissible(uint8_t gpu_mask) const {
  for (int gpu = 0; gpu < kMaxLogGpus; ++gpu) {
    if ((gpu_mask & (1u << gpu)) == 0) continue;
    OrderLog::Progress progress = log_.ProgressOf(gpu);
    int programs = progress.in_flight;
    for (const RecentStart& start : recent_starts_) {
      if (start.position >= progress.read_position && (start.gpu_mask & (1u << gpu)) != 0) ++programs;
    }
    if (programs >= kMaxProgramsPerGpu) return false;
  }
  return true;
}

void LaunchQueue::ReportLate(Plan* plan, uint64_t now) {
  Launch& launch = plan->active;
  if (now < launch.next_late_ns) return;
  uint64_t waited = now - launch.arrive_ns;
  launch.next_late_ns = now + waited;  // after 1, 2, 4, … s
  std::vector<int> missing = MissingRanks(*plan);
  if (!missing.empty()) listener_->OnLate(*plan, launch, missing, static_cast<double>(waited) / 1e9);
}

// Ends or defers one undecided launch; puts it among the candidates if it may start. True if it has ended.
bool LaunchQueue::DecideOne(Plan* plan, uint64_t now) {
  Group& group = *plan->group;
  if (!plan->active.arrived) {
    if (ReadyToPark(*plan)) candidates_.push_back(plan);
    return false;
  }
  const uint8_t missing = MissingMask(*plan);
  if (missing == 0) {
    if (!ReadyToStart(*plan)) return false;
    if (uint8_t differing = MismatchedRanks(*plan); differing != 0) {
      AppendFailure(plan, plan->active.count, LogKind::kFailMismatch, differing);
      return true;
    }
    candidates_.push_back(plan);
    return false;
  }
  if (uint8_t left = missing & group.left_mask; left != 0) {
    int rank = std::countr_zero(left);
    FailUndecided(
        plan,
        MakeFailure("RANK_LEFT", Unavailable("rank " + std::to_string(rank) + " has left the group"), rank));
    return true;
  }
  if (now >= plan->active.deadline_ns) {
    AppendFailure(plan, plan->active.count, LogKind::kFailDeadline, missing);
    return true;
  }
  ReportLate(plan, now);
  if (group.parking && ReadyToPark(*plan)) candidates_.push_back(plan);
  return false;
}

bool LaunchQueue::AppendStarts() {
  // Latency class first, then least GPU time used, then age.
  if (candidates_.size() > 1) {
    std::sort(candidates_.begin(), candidates_.end(), [](const Plan* a, const Plan* b) {
      if (a->latency_class != b->latency_class) return a->latency_class;
      if (a->group->gpu_time_ns != b->group->gpu_time_ns)
        return a->group->gpu_time_ns < b->group->gpu_time_ns;
      return a->active.arrive_ns < b->active.arrive_ns;
    });
  }
  bool any = false;
  for (Plan* plan : candidates_) {
    while (fatal_.ok()) {
      // Everything before read_position_ has been read: if the launch is still undecided, this is its first
      // entry.
      if (!plan->has_active || plan->active.started || plan->group->broken || plan->group->log_break_ns != 0)
        break;
      const bool starts = plan->active.arrived && ReadyToStart(*plan);
      if (!(starts || ReadyToPark(*plan)) || !Admissible(plan->group->gpu_mask)) break;
      LogEntry entry{.kind = starts ? LogKind::kStart : LogKind::kPark,
                     .mask = plan->group->gpu_mask,
                     .plan = static_cast<uint32_t>(plan->id) & kLogIdMask,
                     .count = static_cast<uint16_t>(plan->active.count)};
      bool appended = log_.TryAppend(read_position_, entry);
      any = true;
      DrainLog();
      PublishProgress();
      if (appended) break;
    }
  }
  candidates_.clear();
  return any;
}

void LaunchQueue::NoteTurn(const Origin& origin, uint64_t now) {
  if (!stream_choice_ || origin.kind == Origin::Kind::kDirect) return;
  const uint64_t ended = std::exchange(origin.channel->ended_ns, 0);
  if (ended != 0) stream_choice_->Turn(origin.channel->ended_plan, now - ended, now);
}

void LaunchQueue::ServeStreamChoice() {
  if (!WantsOtherStream() || !LanesIdle()) return;
  // If it cannot, the choice gives up in the end.
  if (lanes_[0]->UseStream(stream_choice_->wanted()).ok()) stream_choice_->Switched();
}

bool LaunchQueue::Poll() {
  ServeStreamChoice();
  bool any = DrainLog();
  if (!fatal_.ok())
    return true;  // what the log has decided is not known any more, and nothing can be told by it
  if (!held_arrivals_.empty()) any |= ArriveHeld();
  if (!undecided_.empty()) {
    uint64_t now = NowNs();
    for (size_t i = 0; i < undecided_.size();) {
      Plan* plan = undecided_[i];
      if (DecideOne(plan, now)) {
        if (!fatal_.ok()) return true;
        any = true;
        candidates_.clear();
        i = 0;  // the list has changed, perhaps by more than this one
        continue;
      }
      ++i;
    }
    any |= AppendStarts();
  }
  if (parked_ > 0) any |= ServeParked(NowNs());
  PublishProgress();
  any |= EndOverdue();
  return ServeBroken(0) || any;
}

void LaunchQueue::Start(Plan* plan, bool parked) {
  RemoveFromUndecided(plan);
  Launch& launch = plan->active;
  Group& group = *plan->group;
  launch.started = true;
  if (plan->takes_epoch) {
    launch.epoch = ++group.epoch;
    if (plan->uses_bulk) group.last_bulk_epoch = launch.epoch;
  }
  const bool uses_lanes = plan->program->step_count() > 0 || parked;
  // First of all: the kernel that is there already can begin meanwhile. It ends no launch; what does comes
  // behind it.
  launch.prelaunched = uses_lanes && UsePrelaunched(plan, parked);
  launch.start_ns = NowNs();
  if (parked) TakeForParking(plan);
  if (launch.origin.channel) launch.origin.channel->latest_started = true;
  PublishOutcome(launch.origin, group.generation, {});
  if (options_.prelaunch && launch.origin.channel) started_ = launch.origin;
  if (!uses_lanes) {
    Origin origin = launch.origin;
    End(plan, {}, launch.start_ns);
    CompleteByCpu(origin, {});
    return;
  }
  launch.ticket = ++next_ticket_;
  launch.alone = in_flight_.empty();
  in_flight_.push_back(plan);
  ++group.in_flight;
  Status enqueued = EnqueueOnLanes(plan);
  if (!enqueued.ok()) {
    // The peers' programs may wait for this one.
    LoseGroup(plan,
              MakeFailure("LAUNCH_FAILED",
                          enqueued.WithContext("plan " + std::to_string(plan->id) + " could not be enqueued"),
                          group.rank));
  }
}

Result<TimingEvents> LaunchQueue::TakeEvents() {
  TimingEvents events;
  if (free_events_.empty()) {
    TANDEM_ASSIGN_OR_RETURN(events.start, backend_->MakeEvent());
    TANDEM_ASSIGN_OR_RETURN(events.end, backend_->MakeEvent());
    return events;
  }
  events = std::move(free_events_.back());
  free_events_.pop_back();
  return events;
}

void LaunchQueue::GiveBack(TimingEvents events) {
  if (events) free_events_.push_back(std::move(events));
}

Status LaunchQueue::PrepareStepEvents(Plan* plan) {
  Launch& launch = plan->active;
  launch.step_events.clear();
  if (!TimesSteps(*plan, launch.count)) return Status::Ok();
  const size_t steps = plan->program->step_count();
  ReadAllEvents(*plan);  // they are used again
  while (plan->step_events.size() < 2 * steps) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Event> event, backend_->MakeEvent());
    plan->step_events.push_back(std::move(event));
  }
  for (size_t i = 0; i < steps; ++i) {
    launch.step_events.push_back({plan->step_events[2 * i].get(), plan->step_events[2 * i + 1].get()});
  }
  return Status::Ok();
}

LaunchContext LaunchQueue::ContextOf(const Plan& plan, uint64_t epoch, std::span<const SlotAddress> slots) {
  const Group& group = *plan.group;
  LaunchContext context;
  context.epoch = epoch;
  if (plan.workspace) {
    context.workspace = plan.workspace->half[epoch & 1];
    context.bulk = plan.workspace->bulk;
  }
  context.signals = group.signals;
  context.slots = slots;
  context.communicator = group.communicator.get();
  context.abort_word = group.abort_word;
  return context;
}

Status LaunchQueue::EnqueueOnLanes(Plan* plan) {
  Launch& launch = plan->active;
  Group& group = *plan->group;
  ProfilerRange range("start", plan->id, launch.count);
  Lane& lane = *lanes_[0];
  Status status;
  // Of a head that is on its way already only Prelaunch can have seen to it.
  const bool timed = IsTimed(launch.count) && !launch.prelaunched;
  if (timed) {
    Result<TimingEvents> events = TakeEvents();
    status = events.status();
    if (status.ok()) launch.events = *std::move(events);
  }
  LaunchContext context = ContextOf(*plan, launch.epoch, launch.slots);
  context.head_enqueued = launch.prelaunched;
  // A launch without its sample is as good.
  launch.step_events.clear();
  if (timed && !PrepareStepEvents(plan).ok()) launch.step_events.clear();
  context.step_events = launch.step_events;
  context.lanes_idle = launch.alone && !launch.parked.on_lanes;
  if (launch.parked.on_lanes) {
    context.guard = {GuardWord(group), launch.epoch};
    if (status.ok()) status = EnqueueParkingWaits(*plan);
  }
  if (status.ok() && timed) status = lane.Record(launch.events.start.get());
  if (status.ok()) status = executor_->Enqueue(*plan->program, context);
  if (!status.ok()) {
    // Before the words below: who sees done must not find the OK of the start.
    launch.failure = MakeFailure(
        "LAUNCH_FAILED", status.WithContext("plan " + std::to_string(plan->id) + " could not be enqueued"),
        group.rank);
    launch.failure.status = launch.failure.status.WithStarted(true);
    PublishOutcome(launch.origin, group.generation, launch.failure);
  }
  // Before the words, which take a microsecond or two that are not the program's; a launch that is timed ends
  // later by this event.
  const Status recorded = launch.events ? lane.Record(launch.events.end.get()) : Status::Ok();
  // Whatever happened, what is on the lanes now ends here: the launch keeps its place and its done value. The
  // client's word before ours, for it is the one that somebody waits for: a client may know of the end a
  // moment before we do (held_arrivals.cc), and once we know, no lane writes into its channel any more.
  Status done;
  if (launch.origin.kind == Origin::Kind::kChannel) {
    done = lane.WriteWord(launch.origin.channel->consumer.done(), launch.origin.id);
  } else if (launch.origin.kind == Origin::Kind::kCaptured) {
    done = lane.WriteWord(launch.origin.channel->consumer.captured_done(launch.origin.slot), 1);
  }
  const Status completed = lane.WriteWord(completion_, launch.ticket);
  for (const Status& next : {recorded, done, completed, lane.FlushWords()}) {
    if (status.ok()) status = next;
  }
  return status;
}

std::string LaunchQueue::AwaitedText(const Plan& plan, int* who_rank) const {
  const Group& group = *plan.group;
  const Word* words = group.signals[static_cast<size_t>(group.rank)];
  bool all_seen = true;
  uint8_t awaited = plan.program->AwaitedRanks([&](uint32_t word) {
    Result<uint64_t> value = backend_->LoadWord(words + word);
    all_seen &= value.ok();
    return value.ok() && *value >= plan.active.epoch;
  });
  if (awaited == 0 && plan.program->AwaitsPackets())
    return "its kernel waits for packets of its peers, of which no word tells";
  if (awaited == 0) return "its lanes wait for no peer's signal: a kernel, a copy or NCCL does not end";
  if (std::has_single_bit(awaited)) *who_rank = std::countr_zero(awaited);
  std::string ranks;
  for (int rank = 0; rank < group.world_size; ++rank) {
    if ((awaited & (1u << rank)) != 0) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  return std::string(all_seen ? "its lanes wait" : "its program waits somewhere") + " for signals of rank " +
         ranks;
}

bool LaunchQueue::EndOverdue() {
  if (in_flight_.empty()) return false;
  Plan* plan = in_flight_.front();
  const Launch& launch = plan->active;
  if (plan->group->broken.has_value()) return false;  // its lanes are being released
  if (launch.parked.Waits()) return false;            // it has not begun
  const uint64_t now = NowNs(), since = std::max(launch.start_ns, front_since_ns_);
  if (now < since || now - since < launch.run_limit_ns) return false;
  int who_rank = -1;
  const std::string awaited = AwaitedText(*plan, &who_rank);
  const std::string who = who_rank < 0 ? "" : "rank " + std::to_string(who_rank);
  LoseGroup(plan,
            {Status(Code::kDeadlineExceeded,
                    "launch " + std::to_string(launch.count) + " of plan " + std::to_string(plan->id) +
                        " has run on rank " + std::to_string(plan->group->rank) + " for " +
                        std::to_string((now - since) / 1'000'000) + " ms, beyond its deadline; " + awaited,
                    {.reason = "LAUNCH_OVERDUE", .who = who, .field = {}}),
             who_rank});
  return true;
}

}  // namespace tandem::engine
