#include "engine/engine.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "engine/polling_pause.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::engine {
namespace {

// Longest sleep when nothing is under way: long enough to cost nothing, short enough to keep up with a log
// that others fill and to show a heartbeat.
constexpr int64_t kLongestSleepNs = 500'000'000;
// With more channels than one futex call takes, the rest is looked at this often.
constexpr int64_t kCrowdedSleepNs = 1'000'000;
constexpr uint64_t kBeatEveryNs = 10'000'000;
constexpr uint64_t kDoorbellWaitBudgetNs = 10'000'000;
// Under MPS a process that ends while a kernel of it runs ends every context on the GPU. Hence lanes get
// nearly all the time that tandemd gives an engine to end.
constexpr uint64_t kDrainForNs = 4'000'000'000;

}  // namespace

Engine::Engine(UniqueFd socket, BackendFactory factory, const TurnLimits& turn_limits)
    : link_(std::move(socket)), factory_(std::move(factory)), turn_limits_(turn_limits) {}

Engine::~Engine() {
  // The backend first: its threads write into the queue's completion word.
  backend_.reset();
  channels_.reset();
  queue_.reset();
  memory_.reset();
  dead_->RunAll(nullptr);
}

bool Engine::Step() {
  bool any = ExecuteCommands();
  any |= MeetSuccessor();
  if (queue_) {
    any |= queue_->Reap();
    any |= channels_->Poll();
    any |= queue_->Poll();
    if (pending_acks_.empty() && dead_->empty()) {
      any |= channels_->SpeculateNext();
    } else {
      queue_->CancelSpeculation();
    }
  }
  any |= FinishPendingAcks();
  if (!dead_->empty() && queue_->LanesDrained()) dead_->RunOne(backend_.get());
  if (!any && queue_) any = queue_->ReadEvents();
  link_.Flush();
  return any;
}

bool Engine::MustPoll() const {
  if (!pending_acks_.empty() || !dead_->empty()) return true;
  return queue_ && (queue_->Pending() || channels_->HasWaiting() || channels_->HasCaptured());
}

void Engine::CheckHealth(uint64_t now_ns) {
  const auto period_ns = static_cast<uint64_t>(backend_ ? backend_->HealthPeriodNs() : 0);
  if (period_ns == 0 || now_ns - last_health_ns_ < period_ns) return;
  last_health_ns_ = now_ns;
  health_ = backend_->Health();
}

void Engine::Sleep() {
  if (queue_) queue_->CancelSpeculation();
  waiters_.clear();
  link_.PrepareSleep();
  waiters_.push_back({link_.sleep_word(), 1});
  bool news = link_.HasNews() || link_.HasSuccessor() || link_.Ended() || !link_.Flush();
  int64_t timeout_ns = kLongestSleepNs;
  if (backend_ && backend_->HealthPeriodNs() > 0)
    timeout_ns = std::min(timeout_ns, backend_->HealthPeriodNs());
  if (queue_) {
    std::atomic<uint32_t>* log_word = queue_->log().sleep_word(gpu_);
    log_word->store(1, std::memory_order_seq_cst);
    waiters_.push_back({log_word, 1});
    if (!channels_->PrepareSleep(&waiters_, &news)) timeout_ns = std::min(timeout_ns, kCrowdedSleepNs);
    news |= queue_->LogHasNews();
  }
  if (!news) FutexWaitAny(waiters_, timeout_ns);
  link_.EndSleep();
  if (queue_) {
    queue_->log().sleep_word(gpu_)->store(0, std::memory_order_relaxed);
    channels_->EndSleep();
  }
}

Status Engine::Run() {
  ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);  // short naps stay short
  PollingPause pause;
  uint64_t last_beat_ns = 0;
  uint32_t steps = 0;
  while (!stopping_ && !link_.Ended()) {
    bool any = Step();
    if (queue_ && !queue_->fatal().ok()) break;
    if (any) pause.Reset();
    // A look at the clock for the heartbeat costs more than a step: only now and then while busy.
    if (!any || ++steps % 256 == 0) {
      uint64_t now = NowNs();
      if (channels_ && now - last_beat_ns > kBeatEveryNs) {
        channels_->Beat(now);
        last_beat_ns = now;
      }
      CheckHealth(now);
      if (!health_.ok()) break;
      if (queue_) queue_->CancelOldSpeculation(now);
      if (any) continue;
      if (MustPoll()) {
        bool only_captured = channels_ && channels_->HasCaptured() && !channels_->HasWaiting() &&
                             !queue_->Pending() && pending_acks_.empty();
        pause.Pause(only_captured && now - channels_->last_doorbell_ns() > kDoorbellWaitBudgetNs);
      } else {
        Sleep();
        pause.Reset();
      }
    }
  }
  Status fatal = queue_ ? queue_->fatal() : Status::Ok();
  if (!health_.ok()) fatal = health_;
  if (!fatal.ok()) {
    v1::Message message;
    message.mutable_ended()->set_code(static_cast<int>(fatal.code()));
    message.mutable_ended()->set_message(fatal.message());
    message.mutable_ended()->set_reason(fatal.detail().reason);
    link_.Send(message);
  }
  ShutDown();
  return fatal;
}

void Engine::ShutDown() {
  if (!queue_) return;
  if (!health_.ok()) {
    // Nothing on the lanes will ever end, and a call for the device (aborting NCCL, say) might not return.
    link_.Flush();
    channels_->ReleaseAll(Aborted("the engine has lost its GPU context: " + health_.message())
                              .WithDetail({.reason = "ENGINE_RESTARTED", .who = {}, .field = {}}));
    return;
  }
  const Status why = Unavailable(stopping_ ? "the engine was stopped" : "the engine ended with its daemon")
                         .WithDetail({.reason = "ENGINE_STOPPED", .who = {}, .field = {}});
  for (uint64_t id : queue_->GroupIds()) queue_->Break(queue_->FindGroup(id), {why, -1});
  // Lanes first, so that launches in flight end with their own done values; then whoever still waits.
  uint64_t deadline = NowNs() + kDrainForNs;
  PollingPause pause;
  queue_->CancelSpeculation();
  while ((queue_->Pending() || !queue_->LanesDrained()) && NowNs() < deadline && queue_->fatal().ok()) {
    if (!queue_->Reap() && !queue_->Poll()) pause.Pause(false);
  }
  FinishPendingAcks();
  link_.Flush();
  channels_->ReleaseAll(why);
}

}  // namespace tandem::engine
