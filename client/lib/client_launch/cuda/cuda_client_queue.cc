#include "client/lib/client_launch/cuda/cuda_client_queue.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>

#include "client/lib/base/capture_holds.h"
#include "client/lib/base/deferred_reclaimer.h"
#include "client/lib/client_launch/client_group.h"
#include "client/lib/cuda/context_scope.h"
#include "program/program.h"

namespace tandem::client {
namespace {

using cuda::AbortReason;
using cuda::CudaDriver;

// A replay may be the last call, so that only a thread of the library notices that it fails.
constexpr std::chrono::milliseconds kFailurePollInterval{5};

// Held by a graph. The driver drops it on a thread that must not call CUDA.
struct GraphHold {
  std::shared_ptr<void> keep;

  ~GraphHold() { DeferredReclaimer::Get().Discard(std::move(keep)); }
};

// Held by a CaptureHold. Replays of the graph may still run when that ends.
class HeldPlan {
 public:
  HeldPlan(CudaClientQueue& queue, std::shared_ptr<void> keep) : queue_(queue), keep_(std::move(keep)) {}
  HeldPlan(const HeldPlan&) = delete;
  HeldPlan& operator=(const HeldPlan&) = delete;
  ~HeldPlan() {
    DeferredReclaimer::Get().DiscardAfter([queue = &queue_] { return queue->HaveLaunchesEnded(); },
                                          std::move(keep_));
  }

 private:
  CudaClientQueue& queue_;  // lives as long as the plan
  std::shared_ptr<void> keep_;
};

uint64_t LoadShared(const uint64_t& word) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}

}  // namespace

std::chrono::milliseconds CudaClientQueue::PollInterval() const { return kFailurePollInterval; }

Result<std::shared_ptr<ClientWork>> CudaClientQueue::Prepare(const plan::RankProgram& program,
                                                             std::vector<runtime::SlotLimit> slots,
                                                             const ClientLaunchMemory& memory,
                                                             Trials trials) {
  TANDEM_ASSIGN_OR_RETURN(auto work, CudaClientWork::Make(program, std::move(slots), memory));
  SlowCallScope scope(pages_->device().driver());
  TANDEM_RETURN_IF_ERROR(pages_->device().Enter());
  const auto local = [this]() -> Result<std::shared_ptr<cuda::LocalWork>> {
    std::lock_guard lock(prepare_mutex_);
    if (local_ == nullptr) {
      TANDEM_ASSIGN_OR_RETURN(local_, products_->MakeWork());
    }
    return local_;
  };
  const auto fused = [this]() -> Result<std::shared_ptr<ClientFusedState>> {
    std::lock_guard lock(prepare_mutex_);
    if (fused_ == nullptr) {
      TANDEM_ASSIGN_OR_RETURN(fused_, ClientFusedState::Make(pages_->shared_device()));
    }
    return fused_;
  };
  TANDEM_RETURN_IF_ERROR(work->Load(local, fused, trials));
  if (memory.signal_bytes >= plan::kClientSignalAreaBytes) {
    std::lock_guard lock(prepare_mutex_);
    own_signals_ = memory.own_signals;
    dense_packets_ = reinterpret_cast<CUdeviceptr>(memory.signals[static_cast<size_t>(program.rank)]) +
                     plan::kSignalAreaBytes;
  }
  std::lock_guard lock(mutex_);
  group_state_.own_words =
      reinterpret_cast<const uint64_t*>(memory.signals[static_cast<size_t>(program.rank)]);
  group_state_.words_per_peer = plan::kSignalsPerWriter;
  return std::shared_ptr<ClientWork>(std::move(work));
}

Status CudaClientQueue::Failed() const {
  TANDEM_RETURN_IF_ERROR(group_.Refusal());
  // A rank that has left was met by all launches that this rank has made. A new one would wait for it.
  return pages_->verdict().FirstAbortedLaunch() != 0 ? pages_->verdict().Reason() : Status::Ok();
}

Status CudaClientQueue::Launch(LaunchStream& stream, ClientWork& work, ClientCall call) {
  auto& cuda_stream = static_cast<CudaLaunchStream&>(stream);
  std::lock_guard lock(mutex_);
  auto& client_work = static_cast<CudaClientWork&>(work);
  Result<std::span<CudaClientStep>> steps =
      client_work.PreparedFor(call.bindings.slots, pages_->device().driver());
  Status launched = steps.status();
  if (launched.ok()) {
    group_state_.timeout_ns = static_cast<uint64_t>(std::max<int64_t>(call.deadline.count(), 1));
    group_state_.tag = call.bindings.tag;
    group_state_.plan = call.plan.Word();
    launched = call.capturing ? LaunchCaptured(cuda_stream, client_work, *steps, call)
                              : LaunchEager(cuda_stream, client_work, *steps, call);
  }
  // No kernel that meets peers was captured: no replay will be missing. An eager launch is missing from now
  // on.
  if (!launched.ok() && !call.capturing) group_.Refuse(call.plan, launched);
  return launched;
}

Status CudaClientQueue::LaunchEager(CudaLaunchStream& stream, CudaClientWork& work,
                                    std::span<CudaClientStep> steps, const ClientCall& call) {
  CudaDriver& driver = pages_->device().driver();
  // A graph may have recorded the event on any stream.
  if (ever_captured_ || call.stream_id != last_stream_) {
    TANDEM_RETURN_IF_ERROR(driver.StreamWaitEvent(stream.stream(), pages_->order()));
  }
  TANDEM_RETURN_IF_ERROR(work.Enqueue(steps, group_state_, stream.stream()));
  last_stream_ = call.stream_id;
  group_.NoteLaunched(call.plan.id);
  call.state->Began();
  auto known = std::find_if(in_flight_.begin(), in_flight_.end(), [&](const InFlight& each) {
    return each.state == call.state && each.stream_id == call.stream_id && each.keep == call.keep;
  });
  if (known == in_flight_.end()) {
    known = in_flight_.insert(known, InFlight{call.state, call.keep, call.stream_id, 0});
  }
  ++known->launches;
  return driver.EventRecord(pages_->order(), stream.stream());
}

Status CudaClientQueue::KeepForGraph(CudaLaunchStream& stream, uint64_t capture,
                                     const std::shared_ptr<void>& keep) {
  const bool is_held =
      CaptureHolds::Get().Keep(capture, keep.get(), [&] { return std::make_shared<HeldPlan>(*this, keep); });
  if (is_held) return Status::Ok();
  auto hold = std::make_shared<GraphHold>();
  hold->keep = keep;
  return stream.RetainInCapture(std::move(hold));
}

bool CudaClientQueue::HaveLaunchesEnded() {
  SlowCallScope scope(pages_->device().driver());
  if (!pages_->device().Enter().ok()) return true;  // the context is gone, and all launches with it
  const Result<bool> reached = pages_->device().driver().EventQuery(pages_->order());
  return !reached.ok() || *reached;
}

Status CudaClientQueue::LaunchCaptured(CudaLaunchStream& stream, CudaClientWork& work,
                                       std::span<CudaClientStep> steps, const ClientCall& call) {
  CudaDriver& driver = pages_->device().driver();
  const CUstream captured = stream.stream();
  TANDEM_ASSIGN_OR_RETURN(cuda::CaptureInfo info, driver.StreamGetCaptureInfo(captured));
  const bool first = info.id != capture_.id;
  TANDEM_RETURN_IF_ERROR(KeepForGraph(stream, info.id, call.keep));
  if (first) {
    TANDEM_RETURN_IF_ERROR(driver.StreamWaitExternalEvent(captured, pages_->order()));
  } else if (captured != capture_.stream) {
    TANDEM_RETURN_IF_ERROR(driver.StreamAddCaptureDependency(captured, capture_.last));
  }
  TANDEM_RETURN_IF_ERROR(work.Enqueue(steps, group_state_, captured));
  TANDEM_ASSIGN_OR_RETURN(info, driver.StreamGetCaptureInfo(captured));
  if (info.dependencies.size() != 1) return Internal("a captured launch is not its stream's last work");
  const CUgraphNode last = info.dependencies.front();
  CUgraphNode record = capture_.record;
  if (first) {
    TANDEM_ASSIGN_OR_RETURN(record, driver.GraphAddEventRecordNode(info.graph, last, pages_->order()));
  } else {
    // This launch follows the one before, which need not be told of apart: a kernel that two nodes wait for
    // ends up to 2 us later.
    TANDEM_RETURN_IF_ERROR(driver.GraphAddDependency(info.graph, last, record));
    TANDEM_RETURN_IF_ERROR(driver.GraphRemoveDependency(info.graph, capture_.last, record));
  }
  capture_ = {info.id, captured, last, record};
  ever_captured_ = true;
  std::erase_if(captured_, [](const auto& state) { return state.expired(); });
  const bool known = std::any_of(captured_.begin(), captured_.end(),
                                 [&](const auto& state) { return state.lock() == call.state; });
  if (!known) captured_.push_back(call.state);
  return Status::Ok();
}

Status CudaClientQueue::ReportedFailure() const {
  const cuda::LaunchReport& report = *pages_->report();
  const auto kind = static_cast<AbortReason>(LoadShared(report.kind));
  const std::string launch = "launch " + std::to_string(LoadShared(report.number));
  const auto peer = static_cast<uint32_t>(LoadShared(report.peer));
  const std::string rank = "rank " + std::to_string(peer);
  const auto awaiting = [&](const char* reason) {
    return StatusDetail{.reason = reason, .who = rank, .ranks = {peer}};
  };
  switch (kind) {
    case AbortReason::kNone: return Status::Ok();
    case AbortReason::kCutOff: return Unavailable(launch + " was ended by tandemd");
    case AbortReason::kLate:
      return DeadlineExceeded(launch + " ended by its deadline: it waited for " + rank)
          .WithDetail(awaiting("RANK_LATE"));
    case AbortReason::kMismatch:
      return InvalidArgument(launch + ": " + rank +
                             " launched another plan, or its rows, tag or symmetric operands differ")
          .WithDetail(awaiting("LAUNCH_MISMATCH"));
    case AbortReason::kDesync: break;
  }
  return FailedPrecondition(launch + ": " + rank + " is more than one launch ahead")
      .WithDetail(awaiting("DESYNC"));
}

std::optional<Status> CudaClientQueue::CheckFailure() {
  const Status reported = ReportedFailure();
  if (reported.ok()) return group_.Failure();
  const cuda::LaunchReport& report = *pages_->report();
  return group_.Judge(LoadShared(report.number), LaunchedPlan::OfWord(LoadShared(report.plan)), reported);
}

bool CudaClientQueue::PollOrder() {
  SlowCallScope scope(pages_->device().driver());
  Status status = pages_->device().Enter();
  if (status.ok()) {
    const Result<bool> reached = pages_->device().driver().EventQuery(pages_->order());
    if (reached.ok()) return *reached;
    status = reached.status();
  }
  group_.LoseContext(status);
  return true;
}

void CudaClientQueue::PollFailures() {
  std::vector<InFlight> ended;
  std::vector<std::weak_ptr<ClientPlanState>> replayed;
  Status failure;
  {
    // A launch may hold it in a call of the driver that goes on only when another launch has ended.
    std::unique_lock lock(mutex_, std::try_to_lock);
    const bool have_ended = lock.owns_lock() && !in_flight_.empty() && PollOrder();
    // After the event: a kernel that has failed has said so before it ended.
    std::optional<Status> known = CheckFailure();
    if (!known.has_value() || !lock.owns_lock()) return;
    failure = *std::move(known);
    if (const uint64_t failures = group_.Failures(); !failure.ok() && failures != replays_failed_) {
      replays_failed_ = failures;
      replayed = captured_;
    }
    if (have_ended) ended.swap(in_flight_);
  }
  for (const auto& known : replayed) {
    if (const auto state = known.lock()) state->Fail(kReplays, 0, failure, true);
  }
  for (const InFlight& each : ended) {
    if (!failure.ok()) each.state->Fail(each.stream_id, 0, failure, true);
    for (uint64_t i = 0; i < each.launches; ++i) each.state->Ended();
  }
}

void CudaClientQueue::ReportProgress() {
  if (!Failed().ok()) return;
  const uint64_t count = pages_->LastCount();
  group_.page().SetFinished(count);
  const bool moves = count != std::exchange(last_count_, count);
  bool is_under_way = false;
  if (std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) is_under_way = !in_flight_.empty();
  if (moves || !is_under_way || group_.page().WaitsSince() == 0) group_.ShowWaiting(is_under_way);
  (void)pages_->StartCount();  // a GPU that does not answer is reported by launches
}

Status CudaClientQueue::ReportFinal() {
  if (!Failed().ok()) return Status::Ok();
  TANDEM_ASSIGN_OR_RETURN(const uint64_t count, pages_->ReadCount());
  group_.page().SetFinished(count);
  return Status::Ok();
}

Result<uint64_t> CudaClientQueue::Stop(Clock::time_point deadline) {
  {
    SlowCallScope scope(pages_->device().driver());
    TANDEM_RETURN_IF_ERROR(pages_->device().Enter());
    while (true) {
      TANDEM_ASSIGN_OR_RETURN(const bool ended, pages_->device().driver().EventQuery(pages_->order()));
      if (ended) break;
      if (Clock::now() >= deadline) {
        return DeadlineExceeded("launches of this rank have not ended").WithDetail({.reason = "NOT_ENDED"});
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return pages_->ReadHighestCount();
}

Status CudaClientQueue::Restart(uint64_t number) {
  {
    SlowCallScope scope(pages_->device().driver());
    TANDEM_RETURN_IF_ERROR(pages_->device().Enter());
    std::lock_guard lock(prepare_mutex_);
    if (dense_packets_ != 0) {
      TANDEM_RETURN_IF_ERROR(pages_->device().driver().MemsetD8Async(
          dense_packets_, 0, 2 * plan::kDensePacketHalfBytes, pages_->device().service_stream()));
    }
    if (fused_ != nullptr) TANDEM_RETURN_IF_ERROR(fused_->Reset());
  }
  TANDEM_RETURN_IF_ERROR(pages_->Restart(number));  // behind all of it on the service stream
  group_.Restart(number);
  return Status::Ok();
}

Status CudaClientQueue::Vacate() {
  SlowCallScope scope(pages_->device().driver());
  TANDEM_RETURN_IF_ERROR(pages_->device().Enter());
  std::lock_guard lock(prepare_mutex_);
  if (local_ != nullptr) TANDEM_RETURN_IF_ERROR(local_->Vacate());
  if (fused_ != nullptr) TANDEM_RETURN_IF_ERROR(fused_->Vacate());
  return pages_->Vacate();
}

Status CudaClientQueue::Refill() {
  SlowCallScope scope(pages_->device().driver());
  TANDEM_RETURN_IF_ERROR(pages_->device().Enter());
  Status filled;
  {
    std::lock_guard lock(prepare_mutex_);
    if (local_ != nullptr) filled = local_->Refill();
    if (filled.ok() && fused_ != nullptr) filled = fused_->Refill();
    if (filled.ok()) filled = pages_->Refill();
  }
  // Others want the memory that is of no use without the rest.
  if (!filled.ok()) (void)Vacate();
  return filled;
}

}  // namespace tandem::client
