#include "engine/launch/speculative_launch.h"

#include <utility>

namespace tandem::engine {
namespace {

constexpr uint64_t kWaitBudgetNs = 50'000'000;

}  // namespace

Word* SpeculativeLaunch::GuardWord(const EngineGroup& group, uint64_t turn) {
  return group.signals[static_cast<size_t>(group.rank)] + group.rank * plan::kSignalsPerWriter +
         kFirstCancelSignal + turn % kCancelSignals;
}

bool SpeculativeLaunch::None() {
  if (state_ == State::kCancelling && lanes_->cancelled_word()->load(std::memory_order_acquire) >= turn_) {
    state_ = State::kNone;
  }
  return state_ == State::kNone;
}

Status SpeculativeLaunch::EnqueuePassed() {
  Lane& lane = lanes_->lane0();
  TANDEM_RETURN_IF_ERROR(lane.WriteWord(lanes_->cancelled_word(), turn_));
  return lane.FlushWords();
}

bool SpeculativeLaunch::Enqueue(ExpectedLaunch expected) {
  InstalledPlan& plan = *expected.plan;
  ++turn_;
  runtime::LaunchContext context = ContextOf(plan, expected.launch_number, expected.slots);
  context.guard = {GuardWord(*plan.group, turn_), turn_};
  if (LaunchTiming::IsTimed(plan.arrivals + 1)) {
    if (Result<TimingEvents> events = timing_->TakeEvents(); events.ok())
      events_ = *std::move(events);  // else untimed
  }
  Lane& lane = lanes_->lane0();
  Status status = lane.WaitWord(lanes_->go_word(), turn_);
  if (status.ok() && events_) status = lane.Record(events_.start.get());
  if (status.ok()) status = lanes_->executor().EnqueueFirstKernel(*plan.program, context);
  if (const Status flushed = lane.FlushWords(); status.ok()) status = flushed;
  if (!status.ok()) {
    // No kernel stands behind the wait; the launch itself reports what is wrong, if anything is. The lane is
    // not idle before it has passed the wait.
    lanes_->go_word()->store(turn_, std::memory_order_release);
    if (EnqueuePassed().ok()) state_ = State::kCancelling;
    plan.never_speculative = true;
    timing_->GiveBack(std::exchange(events_, {}));
    return false;
  }
  expected_ = std::move(expected);
  since_ns_ = NowNs();
  state_ = State::kWaiting;
  return true;
}

bool SpeculativeLaunch::Use(InstalledPlan* plan, bool lanes_busy, Status* cancelled) {
  if (!Waiting()) return false;
  Launch& launch = plan->active;
  // The other lanes of a program that forks would wait for its first kernel, were they not idle.
  const bool same = expected_.plan == plan && expected_.launch_number == launch.launch_number &&
                    expected_.slots == launch.slots && !(lanes_busy && plan->program->forks());
  if (!same) {
    expected_.forecast->WasWrong();
    *cancelled = Cancel();
    return false;
  }
  lanes_->go_word()->store(turn_, std::memory_order_release);
  state_ = State::kNone;
  launch.events = std::exchange(events_, {});
  expected_ = {};
  stats_->CountSpeculated();
  return true;
}

Status SpeculativeLaunch::Cancel() {
  if (!Waiting()) return Status::Ok();
  stats_->CountCancelled();
  Word* guard = GuardWord(*expected_.plan->group, turn_);
  Status status = backend_->StoreWordsInOrder(guard, turn_, lanes_->go_word(), turn_);
  // The lanes count as idle only once this word is there, and nobody writes the go word before.
  if (status.ok()) status = EnqueuePassed();
  state_ = State::kCancelling;
  expected_ = {};
  // An event that is recorded again follows this record on the same lane. Lane 0 changes its stream only
  // after it has passed the kernel.
  timing_->GiveBack(std::exchange(events_, {}));
  return status.WithContext("cancelling a speculative launch");
}

Status SpeculativeLaunch::CancelIfOld(uint64_t now_ns) {
  return Waiting() && now_ns - since_ns_ > kWaitBudgetNs ? Cancel() : Status::Ok();
}

}  // namespace tandem::engine
