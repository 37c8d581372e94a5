// The launch queue: reading the order log, what launches wait for, and what may enter the log.
#include <algorithm>
#include <bit>
#include <utility>

#include "engine/launch/launch_outcome.h"
#include "engine/launch/launch_queue.h"

namespace tandem::engine {
namespace {

constexpr int kMaxProgramsPerGpu = 2;
constexpr size_t kMaxRecentStarts = 64;

}  // namespace

bool LaunchQueue::LogHasNews() const {
  LogEntry entry;
  return log_.Read(read_position_, &entry) != LogRead::kEmpty;
}

bool LaunchQueue::DrainLog() {
  bool any = false;
  for (LogEntry entry;;) {
    switch (log_.Read(read_position_, &entry)) {
      case LogRead::kEmpty: return any;
      case LogRead::kLapped:
        fatal_ = Status(Code::kDataLoss,
                        "the order log has lapped this engine at position " + std::to_string(read_position_));
        return any;
      case LogRead::kEntry:
        any = true;
        ++read_position_;
        Apply(entry, read_position_ - 1);
        break;
    }
  }
}

uint64_t LaunchQueue::FullCount(const InstalledPlan& plan, uint16_t low) const {
  uint64_t near = plan.arrivals + 1;
  return near +
         static_cast<uint64_t>(static_cast<int64_t>(static_cast<int16_t>(low - static_cast<uint16_t>(near))));
}

void LaunchQueue::Apply(const LogEntry& entry, uint64_t position) {
  if (entry.kind == LogKind::kBreak || entry.kind == LogKind::kStall) {
    for (auto& [id, group] : groups_) {
      const bool named =
          ((id ^ entry.plan) & kLogIdMask) == 0 && static_cast<uint16_t>(group->generation) == entry.count;
      if (!named) continue;
      if (entry.kind == LogKind::kBreak) {
        breaker_.NoteAnnounced(group.get(), NowNs());
      } else {
        Stall(group.get(), RenewingFailure(entry.mask));
      }
    }
    return;
  }
  const bool starts = entry.kind == LogKind::kStart;
  if (starts) {
    recent_starts_.push_back({position, entry.mask});
    if (recent_starts_.size() > kMaxRecentStarts) recent_starts_.pop_front();
  }
  auto found = plans_.find(entry.plan);
  if (found == plans_.end()) return;
  InstalledPlan* plan = found->second.get();
  uint64_t count = FullCount(*plan, entry.count);
  const bool stalls =
      plan->group->stalls && (entry.kind == LogKind::kFailDeadline || entry.kind == LogKind::kFailDesync);
  if (stalls) return Stall(plan->group, FailureByLog(*plan, count, entry));
  if (plan->active.Is(LaunchState::kArrived) && plan->active.count == count) {
    if (!starts) {
      const Failure failure = FailureByLog(*plan, count, entry);
      listener_->OnLaunchFailed(*plan, count, failure.status);
      Refuse(plan, failure);
    } else if (plan->group->MayStart()) {
      Start(plan);
    }
    return;
  }
  if (starts || count <= plan->arrivals) return;
  for (const auto& known : plan->early) {
    if (known.first == count) return;  // the first entry for a launch decides
  }
  plan->early.emplace_back(count, entry);
}

void LaunchQueue::Stall(EngineGroup* group, const Failure& why) {
  if (group->stalled) return;
  group->stalled = why;
  if (why.status.detail().reason != kRenewing) listener_->OnGroupStalled(*group, why.status);
  CancelSpeculation();
  std::vector<InstalledPlan*> waiting;
  for (InstalledPlan* plan : undecided_) {
    if (plan->group == group) waiting.push_back(plan);
  }
  for (InstalledPlan* plan : waiting) {
    listener_->OnLaunchFailed(*plan, plan->active.count, why.status);
    Refuse(plan, why);
  }
}

void LaunchQueue::AppendFailure(InstalledPlan* plan, uint64_t count, LogKind kind, uint8_t ranks) {
  LogEntry entry{.kind = kind,
                 .mask = ranks,
                 .plan = static_cast<uint32_t>(plan->id) & kLogIdMask,
                 .count = static_cast<uint16_t>(count)};
  const auto undecided = [&] {
    return plan->active.Is(LaunchState::kArrived) && plan->active.count == count;
  };
  const bool for_active = undecided();
  while (fatal_.ok()) {
    DrainLog();
    // START, or a failure that ended it, has decided it meanwhile.
    if (for_active && !undecided()) return;
    if (log_.TryAppend(read_position_, entry)) break;
  }
  DrainLog();
}

void LaunchQueue::Refuse(InstalledPlan* plan, Failure failure, std::optional<bool> started) {
  failure.status = failure.status.WithStarted(started);
  RemoveFromUndecided(plan);
  PublishOutcome(plan->active.origin, plan->group->generation, failure);
  const Origin origin = plan->active.origin;
  End(plan, LaunchEvent::kRefuse, failure, NowNs());
  CompleteByCpu(origin, failure, listener_);
}

void LaunchQueue::RemoveFromUndecided(InstalledPlan* plan) {
  auto found = std::find(undecided_.begin(), undecided_.end(), plan);
  if (found != undecided_.end()) {
    *found = undecided_.back();
    undecided_.pop_back();
  }
}

std::vector<int> LaunchQueue::MissingRanks(const InstalledPlan& plan) const {
  std::vector<int> missing;
  for (int rank = 0; rank < plan.group->world_size; ++rank) {
    if (plan.group->arrivals.Count(plan.index, rank) < plan.active.count) missing.push_back(rank);
  }
  return missing;
}

uint8_t LaunchQueue::MissingMask(const InstalledPlan& plan) const {
  uint8_t missing = 0;
  for (int rank = 0; rank < plan.group->world_size; ++rank) {
    if (plan.group->arrivals.Count(plan.index, rank) < plan.active.count)
      missing |= static_cast<uint8_t>(1u << rank);
  }
  return missing;
}

uint8_t LaunchQueue::MismatchedRanks(const InstalledPlan& plan) const {
  const ArrivalTable& arrivals = plan.group->arrivals;
  uint8_t mask = 0;
  for (int rank = 1; rank < plan.group->world_size; ++rank) {
    if (arrivals.Digest(plan.index, rank) != arrivals.Digest(plan.index, 0))
      mask |= static_cast<uint8_t>(1u << rank);
  }
  return mask;
}

bool LaunchQueue::ReadyToStart(const InstalledPlan& plan) const {
  const EngineGroup& group = *plan.group;
  for (int rank = 0; rank < group.world_size; ++rank) {
    // Beyond our launch: it has been decided, and the log says how.
    if (group.arrivals.Count(plan.index, rank) != plan.active.count) return false;
    if (plan.uses_bulk && group.arrivals.BulkEnded(rank) < group.last_bulk_launch) return false;
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

void LaunchQueue::ReportLate(InstalledPlan* plan, uint64_t now) {
  Launch& launch = plan->active;
  if (now < launch.next_late_ns) return;
  uint64_t waited = now - launch.arrive_ns;
  if (launch.next_late_ns == launch.arrive_ns + kLateAfterNs) stats_.CountLate();
  launch.next_late_ns = now + waited;  // after 1, 2, 4, … s
  std::vector<int> missing = MissingRanks(*plan);
  if (!missing.empty()) listener_->OnLate(*plan, launch, missing, static_cast<double>(waited) / 1e9);
}

// Ends or defers one undecided launch; puts it among the candidates if it may start. True if it has ended.
bool LaunchQueue::DecideOne(InstalledPlan* plan, uint64_t now) {
  EngineGroup& group = *plan->group;
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
    Refuse(plan, MakeFailure("RANK_LEFT", Unavailable("rank " + std::to_string(rank) + " has left the group"),
                             rank));
    return true;
  }
  if (const uint8_t elsewhere = FindDesync(plan, missing, now); elsewhere != 0) {
    AppendFailure(plan, plan->active.count, LogKind::kFailDesync, elsewhere);
    return true;
  }
  if (now >= plan->active.deadline_ns) {
    AppendFailure(plan, plan->active.count, LogKind::kFailDeadline, missing);
    return true;
  }
  ReportLate(plan, now);
  return false;
}

bool LaunchQueue::AppendStarts() {
  // Latency class first, then least GPU time used, then age.
  if (candidates_.size() > 1) {
    std::sort(candidates_.begin(), candidates_.end(), [](const InstalledPlan* a, const InstalledPlan* b) {
      if (a->latency_class != b->latency_class) return a->latency_class;
      if (a->group->gpu_time_ns != b->group->gpu_time_ns)
        return a->group->gpu_time_ns < b->group->gpu_time_ns;
      return a->active.arrive_ns < b->active.arrive_ns;
    });
  }
  bool any = false;
  for (InstalledPlan* plan : candidates_) {
    while (fatal_.ok()) {
      // Everything before read_position_ has been read: if the launch is still undecided, this is its first
      // entry.
      if (!plan->active.Is(LaunchState::kArrived) || !plan->group->MayStart()) break;
      if (!ReadyToStart(*plan) || !Admissible(plan->group->gpu_mask)) break;
      LogEntry entry{.kind = LogKind::kStart,
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

bool LaunchQueue::DecideAll() {
  bool any = false;
  const uint64_t now = NowNs();
  for (size_t i = 0; i < undecided_.size();) {
    if (!DecideOne(undecided_[i], now)) {
      ++i;
      continue;
    }
    if (!fatal_.ok()) return true;
    any = true;
    candidates_.clear();
    i = 0;  // the list has changed, perhaps by more than this launch
  }
  return AppendStarts() || any;
}

bool LaunchQueue::Poll() {
  if (lanes_.WantsOtherStream() && LanesDrained()) lanes_.ChangeStream();
  bool any = DrainLog();
  CountLooks();
  if (!fatal_.ok()) return true;  // the log's decisions are not known any more: no launch may end by them
  if (!released_.empty()) any |= ServeReleased();
  if (!undecided_.empty()) {
    any |= DecideAll();
    if (!fatal_.ok()) return true;
  }
  if (!held_.empty()) any |= ServeHeld();
  PublishWaiting();
  PublishProgress();
  any |= EndOverdue();
  return ServeBroken(0) || any;
}

void LaunchQueue::PublishWaiting() {
  if (undecided_.empty() && !published_waiting_) return;
  published_waiting_ = !undecided_.empty();
  uint64_t oldest = 0;
  uint32_t late = 0;
  for (const InstalledPlan* plan : undecided_) {
    const Launch& launch = plan->active;
    if (oldest == 0 || launch.arrive_ns < oldest) oldest = launch.arrive_ns;
    // It has been reported as late.
    if (launch.next_late_ns > launch.arrive_ns + kLateAfterNs)
      late += static_cast<uint32_t>(std::popcount(MissingMask(*plan)));
  }
  stats_.SetWaiting(static_cast<uint32_t>(undecided_.size()), late, oldest);
}

void LaunchQueue::PublishProgress() {
  const uint64_t progress = read_position_ << 8 | static_cast<uint8_t>(in_flight_.size());
  if (progress == published_progress_) return;
  published_progress_ = progress;
  stats_.SetStarted(static_cast<uint32_t>(in_flight_.size()));
  log_.PublishProgress(options_.gpu, read_position_, static_cast<int>(in_flight_.size()));
}

}  // namespace tandem::engine
