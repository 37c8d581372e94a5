// Prelaunching: the first kernel of the launch that is expected next goes onto lane 0 before its launch has
// arrived, behind a wait for a word that this engine's CPU writes when the log says START. That write takes a
// fraction of what launching a kernel does.
//
//   lane 0: wait go · head of the program     then, at START:  go = turn · the rest of the program · done ·
//   completion
//
// Nobody else knows of it: what starts, and in which order, is decided by the log as ever. If anything else
// is to go onto the lanes first, the head is called off: its guard is raised, and it is let go to do nothing.
#include <utility>

#include "engine/launch/launch_queue.h"

namespace tandem::engine {
namespace {

// In the engine's own page of words, each in a cache line of its own.
constexpr size_t kGoWord = 16, kCalledOffWord = 24;
// What has been enqueued ahead for so long is called off: its channel does other work now.
constexpr uint64_t kPatienceNs = 50'000'000;

}  // namespace

Word* LaunchQueue::CallOffWord(const Group& group, uint64_t turn) {
  return group.signals[static_cast<size_t>(group.rank)] + group.rank * plan::kSignalsPerWriter +
         kFirstCallOffSignal + turn % kCallOffSignals;
}

bool LaunchQueue::MayPrelaunch() const {
  return options_.prelaunch && !prelaunched_ && undecided_.empty() && parked_ == 0 && !WantsOtherStream() &&
         HeadsPassed();
}

bool LaunchQueue::Prelaunch(const LaunchRequest& request, std::shared_ptr<Forecast> forecast) {
  if (!MayPrelaunch()) return false;
  Plan* plan = FindPlan(request.plan_id);
  if (plan == nullptr || !plan->program->has_head() || plan->never_prelaunched) return false;
  Group& group = *plan->group;
  if (group.broken.has_value() || group.log_break_ns != 0 || group.left_mask != 0 || group.parking)
    return false;
  if (request.group_generation != group.generation ||
      group.signals[static_cast<size_t>(group.rank)] == nullptr)
    return false;
  if (group.session_id != 0 && request.origin.session_id != group.session_id) return false;
  const uint64_t launch = plan->arrivals + 1;
  if (TimesSteps(*plan, launch)) return false;  // an event comes before its head, and one behind it
  Prelaunched ahead;
  uint64_t digest = 0;  // the peers' business, when it arrives; so is what is wrong with it
  if (!ResolveBindings(*plan, request, &ahead.slots, &ahead.pins, &digest).ok()) return false;
  ahead.plan = plan;
  ahead.epoch = plan->takes_epoch ? group.epoch + 1 : 0;
  ahead.turn = ++next_turn_;
  ahead.since_ns = NowNs();
  ahead.forecast = std::move(forecast);
  LaunchContext context = ContextOf(*plan, ahead.epoch, ahead.slots);
  context.guard = {CallOffWord(group, ahead.turn), ahead.turn};
  if (IsTimed(launch)) {
    if (Result<TimingEvents> events = TakeEvents(); events.ok())
      ahead.events = *std::move(events);  // else it goes untimed
  }
  Lane& lane = *lanes_[0];
  Status status = lane.WaitWord(&words_[kGoWord], ahead.turn);
  if (status.ok() && ahead.events) status = lane.Record(ahead.events.start.get());
  if (status.ok()) status = executor_->EnqueueHead(*plan->program, context);
  if (const Status flushed = lane.FlushWords(); status.ok()) status = flushed;
  if (!status.ok()) {
    // No kernel stands behind the wait; the launch itself will say what is wrong, if anything is. The lane is
    // not idle before that.
    words_[kGoWord].store(ahead.turn, std::memory_order_release);
    if (lane.WriteWord(&words_[kCalledOffWord], ahead.turn).ok() && lane.FlushWords().ok())
      called_off_ = ahead.turn;
    plan->never_prelaunched = true;
    GiveBack(std::move(ahead.events));
    return false;
  }
  prelaunched_ = std::move(ahead);
  return true;
}

bool LaunchQueue::UsePrelaunched(Plan* plan, bool parked) {
  if (!prelaunched_) return false;
  Launch& launch = plan->active;
  // The other lanes of a program that forks would wait for its head, were they not idle.
  const bool same = !parked && prelaunched_->plan == plan && prelaunched_->epoch == launch.epoch &&
                    prelaunched_->slots == launch.slots && (in_flight_.empty() || !plan->program->forks());
  if (!same) {
    prelaunched_->forecast->WasWrong();
    CallOff();
    return false;
  }
  words_[kGoWord].store(prelaunched_->turn, std::memory_order_release);
  launch.events = std::move(prelaunched_->events);
  prelaunched_.reset();
  stats_.CountPrelaunched();
  return true;
}

void LaunchQueue::CallOff() {
  if (!prelaunched_) return;
  Prelaunched ahead = std::move(*prelaunched_);
  prelaunched_.reset();
  stats_.CountCalledOff();
  Word* guard = CallOffWord(*ahead.plan->group, ahead.turn);
  Status told = backend_->StoreWordsInOrder(guard, ahead.turn, &words_[kGoWord], ahead.turn);
  // Whoever waits for the lanes to stand still waits for this as well, and nobody writes the go word before.
  Lane& lane = *lanes_[0];
  if (told.ok()) told = lane.WriteWord(&words_[kCalledOffWord], ahead.turn);
  if (const Status flushed = lane.FlushWords(); told.ok()) told = flushed;
  if (!told.ok() && fatal_.ok()) fatal_ = told.WithContext("calling a kernel off");
  called_off_ = ahead.turn;
  // Recorded anew it is behind this record on the same lane, unless the lane changes its stream: not before
  // heads have passed.
  GiveBack(std::move(ahead.events));
}

bool LaunchQueue::HeadsPassed() const {
  return words_[kCalledOffWord].load(std::memory_order_acquire) >= called_off_;
}

void LaunchQueue::CallOffIfForgotten(uint64_t now) {
  if (prelaunched_ && now - prelaunched_->since_ns > kPatienceNs) CallOff();
}

bool LaunchQueue::LanesIdle() const { return in_flight_.empty() && !prelaunched_ && HeadsPassed(); }

}  // namespace tandem::engine
