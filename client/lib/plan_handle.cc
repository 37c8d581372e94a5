// Plan: launching, waiting, releasing.
#include <algorithm>

#include "client/lib/base/backoff.h"
#include "client/lib/handles.h"
#include "common/deadline.h"
#include "common/digest.h"
#include "common/exceptions.h"

namespace tandem::client {
namespace {

using Clock = std::chrono::steady_clock;

// How long a launch waits for engines that are being restarted, and a release for launches in flight.
constexpr Milliseconds kRestartDeadline(30000);
constexpr Milliseconds kReleaseDeadline(60000);
// The reason of a WaitLaunch that has met its own deadline, not the launch's.
constexpr char kNotEnded[] = "NOT_ENDED";

Milliseconds Until(Clock::time_point deadline) {
  return std::max(std::chrono::duration_cast<Milliseconds>(deadline - Clock::now()), Milliseconds(1));
}

Status HasBeenReleased(const std::string& key) {
  return FailedPrecondition("plan '" + key + "' has been released").WithDetail({.reason = "PLAN_RELEASED"});
}

// The outcome to return of two that a call has waited for: the first failure, but a restart before any other,
// since each rank must hear of it before it launches on. Its `started` is about both.
Status MoreSevere(Status first, Status second) {
  if (first.ok()) return second;
  if (second.ok()) return first;
  const std::optional<bool> started = MoreStarted(first.detail().started, second.detail().started);
  const bool second_counts = second.code() == Code::kAborted && first.code() != Code::kAborted;
  return (second_counts ? second : first).WithStarted(started);
}

}  // namespace

std::vector<PlanHandle::SlotRule> PlanHandle::RulesOf(const OpRequest& request) {
  std::vector<SlotRule> rules;
  for (const Operand& operand : request.operands)
    rules.push_back({std::max<size_t>(1, DTypeBytes(operand.spec.dtype)), operand.symmetric});
  return rules;
}

PlanHandle::PlanHandle(std::shared_ptr<GroupHandle> group, PlanInfo info, const OpRequest& request,
                       std::shared_ptr<ClientPlan> client_plan)
    : group_(std::move(group)),
      info_(std::move(info)),
      rules_(RulesOf(request)),
      overlap_(request),
      client_plan_(std::move(client_plan)),
      state_(std::make_shared<ClientPlanState>(info_.plan_id, group_->state())) {}

PlanHandle::~PlanHandle() {
  IgnoreExceptions([&] {
    if (!state_->Released() && session().CanCallDaemon())
      (void)session().control().ReleasePlan(info_.plan_id);
  });
}

ClientSession& PlanHandle::session() const { return *group_->session(); }

Status PlanHandle::BeforeLaunch() {
  TANDEM_RETURN_IF_ERROR(session().CheckLaunchable());
  if (state_->Released()) return HasBeenReleased(info_.key);
  ClientGroupState& group = *group_->state();
  Status broken = group.Broken();
  if (!broken.ok()) return broken;
  const uint64_t told = group.generation();
  if (!group.Outdated()) return Status::Ok();
  // Every launch up to here belongs to engines that are gone. Told once; what it has in flight says the same.
  // Other failures are no reason not to make a launch: a later call tells them.
  session().ReapAll();
  if (std::optional<Status> failure = state_->TakeAborted(kAnyStream)) return *failure;
  if (!group.MoveOn(told)) return Status::Ok();
  return Aborted(
             "an engine of the group was restarted: launches made before it have ended, this one was not "
             "made")
      .WithDetail({.reason = "ENGINE_RESTARTED", .started = false});
}

Status PlanHandle::Launch(StreamRef ref, std::span<const Binding> bindings,
                          const LaunchOptions& options) try {
  if (client_plan_ != nullptr) return LaunchOnStream(ref, bindings, options);
  TANDEM_RETURN_IF_ERROR(BeforeLaunch());
  TANDEM_ASSIGN_OR_RETURN(ClientDevice * device, session().device());
  LaunchStreamStorage storage;
  TANDEM_ASSIGN_OR_RETURN(LaunchStream * stream, device->Open(ref, group_->gpu_uuid(), &storage));
  TANDEM_ASSIGN_OR_RETURN(bool capturing, stream->IsCapturing());
  LaunchEntry entry;
  BoundRegistrations bound;
  Status wrong = FillEntry(*device, bindings, options, &entry, &bound);
  if (capturing && !wrong.ok()) return wrong;
  uint64_t stream_id = kReplays, captures = 0;
  if (!capturing) {
    TANDEM_ASSIGN_OR_RETURN(stream_id, stream->Id());
  }
  Clock::time_point deadline{};
  PollBackoff backoff;
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<StreamChannel> channel,
                            capturing ? session().ChannelForCaptures(captures, group_->gpu_uuid())
                                      : session().ChannelFor(stream_id, group_->gpu_uuid()));
    channel->Reap();
    if (!capturing) session().ReapReplays();
    // Launches that a restart cut off: this one is not made, so that all ranks go on from the same count.
    if (state_->HasFailed()) session().ReapAll();  // `started` is about the plan's launches on all streams
    if (std::optional<Status> aborted = state_->TakeAborted(stream_id)) return *aborted;
    TANDEM_ASSIGN_OR_RETURN(entry.group_generation, group_->state()->ForLaunch(kRestartDeadline));
    Status pushed = capturing ? channel->Capture(&entry, state_, stream, shared_from_this(), &bound)
                              : channel->Launch(&entry, state_, stream, !wrong.ok(), &bound);
    if (pushed.ok()) {
      // Only now: a failure that is taken is told, and until here this launch may have to wait, or end
      // without being made.
      std::optional<Status> earlier = state_->TakeOther(stream_id);
      return earlier.has_value() ? *earlier : wrong;
    }
    if (pushed.detail().reason == "SLOTS_FULL") {
      ++captures;
      continue;
    }
    bool full = pushed.detail().reason == "RING_FULL";
    if (!full && !channel->Released()) return pushed;
    TANDEM_RETURN_IF_ERROR(session().CheckLaunchable());
    TANDEM_RETURN_IF_ERROR(group_->state()->Broken());
    if (deadline == Clock::time_point{}) {
      const Milliseconds groups =
          group_->launch_deadline().count() > 0 ? group_->launch_deadline() : kDefaultLaunchDeadline;
      deadline = Clock::now() + (options.deadline.count() > 0 ? Bounded(options.deadline) : groups);
    }
    if (Clock::now() >= deadline) return pushed;
    backoff.Pause();
  }
}
TANDEM_CATCH_TO_STATUS

Status PlanHandle::LaunchOnStream(StreamRef ref, std::span<const Binding> bindings,
                                  const LaunchOptions& options) {
  TANDEM_RETURN_IF_ERROR(session().CheckLaunchable());
  if (state_->Released()) return HasBeenReleased(info_.key);
  TANDEM_RETURN_IF_ERROR(client_plan_->group().queue().Failed());
  TANDEM_RETURN_IF_ERROR(group_->state()->Broken());
  TANDEM_ASSIGN_OR_RETURN(ClientDevice * device, session().device());
  LaunchStreamStorage storage;
  TANDEM_ASSIGN_OR_RETURN(LaunchStream * stream, device->Open(ref, group_->gpu_uuid(), &storage));
  TANDEM_ASSIGN_OR_RETURN(const bool capturing, stream->IsCapturing());
  uint64_t stream_id = kReplays;
  if (capturing) {
    client_plan_->group().NoteCaptured();
  } else {
    TANDEM_ASSIGN_OR_RETURN(stream_id, stream->Id());
  }
  Result<ClientBindings> bound = BindAddresses(bindings, options);
  if (!bound.ok()) {
    // Nothing was captured: no replay will be missing. A launch is missing from now on.
    if (!capturing) client_plan_->group().Refuse(info_.plan_id, bound.status());
    return bound.status();
  }
  return client_plan_->Launch(*stream, capturing, stream_id, *std::move(bound), options.deadline, state_);
}

Result<uint64_t> PlanHandle::LaunchWithoutStream(std::span<const Binding> bindings,
                                                 const LaunchOptions& options) try {
  if (client_plan_ != nullptr) {
    return FailedPrecondition("plan '" + info_.key + "' is placed in the client: launch it on a stream")
        .WithDetail({.reason = "CLIENT_PLACED"});
  }
  TANDEM_RETURN_IF_ERROR(BeforeLaunch());
  DirectLaunch launch;
  launch.plan_id = info_.plan_id;
  launch.deadline_ms = static_cast<uint64_t>(Bounded(options.deadline).count());
  launch.tag = options.tag;
  TANDEM_ASSIGN_OR_RETURN(launch.generation, group_->state()->ForLaunch(kRestartDeadline));
  TANDEM_ASSIGN_OR_RETURN(ClientDevice * device, session().device());
  LaunchEntry entry;
  Direct direct{launch.generation, {}, {}};
  // A launch with wrong bindings arrives all the same, and is refused for all ranks. Bindings beyond an
  // entry's length are not bound at all.
  direct.wrong = FillEntry(*device, bindings, options, &entry, &direct.bound);
  for (size_t i = 0; i < bindings.size(); ++i) {
    LaunchBinding binding = i < entry.binding_count ? entry.bindings[i] : LaunchBinding{};
    launch.bindings.emplace_back(binding.registration_id, binding.offset);
  }
  TANDEM_ASSIGN_OR_RETURN(uint64_t id, session().control().Launch(launch));
  std::lock_guard lock(direct_mutex_);
  direct_.emplace(id, std::move(direct));
  return id;
}
TANDEM_CATCH_TO_STATUS

Status PlanHandle::WaitLaunch(uint64_t launch, Milliseconds deadline) try {
  TANDEM_RETURN_IF_ERROR(session().CheckUsable());
  // Another plan's is that one's to tell.
  if (!IsUnderWay(launch)) {
    return NotFound("no launch " + std::to_string(launch) + " of plan '" + info_.key +
                    "', or its outcome was returned already");
  }
  Status status = session().control().WaitLaunch(launch, Bounded(deadline));
  if (status.code() == Code::kDeadlineExceeded && status.detail().reason.empty()) {
    // This call's deadline, or the launch's own? The daemon forgets a launch once it has told its outcome.
    Status again = session().control().WaitLaunch(launch, Milliseconds(0));
    if (again.code() != Code::kNotFound) status = again;
    if (again.code() == Code::kDeadlineExceeded) return status;
  }
  if (status.detail().reason == kNotEnded) return status;
  // The outcome of a launch that has ended is told here, and once.
  uint64_t generation = 0;
  {
    std::lock_guard lock(direct_mutex_);
    auto it = direct_.find(launch);
    if (it == direct_.end()) return status;
    generation = it->second.generation;
    // The daemon knows the slots' registrations only; this side knows what was wrong with the bindings.
    if (!status.ok() && status.code() != Code::kAborted && !it->second.wrong.ok()) status = it->second.wrong;
    direct_.erase(it);
  }
  state_->Told(generation, status);
  return status;
}
TANDEM_CATCH_TO_STATUS

bool PlanHandle::IsUnderWay(uint64_t launch) {
  std::lock_guard lock(direct_mutex_);
  return direct_.contains(launch);
}

Status PlanHandle::WaitPending(Clock::time_point deadline) {
  PollBackoff backoff;
  while (true) {
    session().ReapAll();
    const bool judging = client_plan_ != nullptr && client_plan_->group().AwaitsVerdict();
    if (state_->Pending() == 0 && !judging) return Status::Ok();
    if (Clock::now() >= deadline) {
      return DeadlineExceeded(std::to_string(state_->Pending()) + " launches of plan '" + info_.key +
                              "' have not ended")
          .WithDetail({.reason = kNotEnded});
    }
    backoff.Pause();
  }
}

std::vector<uint64_t> PlanHandle::DirectLaunches() {
  std::vector<uint64_t> launches;
  std::lock_guard lock(direct_mutex_);
  for (const auto& [launch, direct] : direct_) launches.push_back(launch);
  return launches;
}

Status PlanHandle::WaitDirect(Clock::time_point deadline) {
  Status told;
  for (uint64_t launch : DirectLaunches()) {
    Status status = WaitLaunch(launch, Until(deadline));
    const bool late = status.detail().reason == kNotEnded;
    // NOT_FOUND: its outcome was another call's to tell.
    if (status.code() != Code::kNotFound) told = MoreSevere(std::move(told), std::move(status));
    if (late) break;  // the deadline has passed
  }
  return told;
}

Status PlanHandle::Wait(Milliseconds wait) try {
  TANDEM_RETURN_IF_ERROR(session().CheckUsable());
  Clock::time_point deadline = Clock::now() + Bounded(wait);
  TANDEM_RETURN_IF_ERROR(WaitPending(deadline));
  if (std::optional<Status> failure = state_->TakeFailure(kAnyStream)) {
    // One call tells one of them; all that this Wait has waited for is told by it.
    Status told = *std::move(failure);
    while ((failure = state_->TakeFailure(kAnyStream)))
      told = MoreSevere(std::move(told), *std::move(failure));
    return MoreSevere(std::move(told), WaitDirect(deadline));
  }
  return WaitDirect(deadline);
}
TANDEM_CATCH_TO_STATUS

Result<bool> PlanHandle::Query() try {
  TANDEM_RETURN_IF_ERROR(session().CheckUsable());
  session().ReapAll();
  if (std::optional<Status> failure = state_->TakeFailure(kAnyStream)) return *failure;
  if (state_->Pending() != 0) return false;
  if (client_plan_ != nullptr && client_plan_->group().AwaitsVerdict()) return false;
  for (uint64_t launch : DirectLaunches()) {
    Status status = WaitLaunch(launch, Milliseconds(0));
    if (status.code() == Code::kDeadlineExceeded && IsUnderWay(launch)) return false;
    if (!status.ok() && status.code() != Code::kNotFound) return status;
  }
  return true;
}
TANDEM_CATCH_TO_STATUS

void PlanHandle::DropFailures() {
  const auto take = [this] {
    return client_plan_ != nullptr ? state_->TakeFailure(kAnyStream) : state_->TakeOther(kAnyStream);
  };
  while (take()) continue;
}

Status PlanHandle::Release() try {
  TANDEM_RETURN_IF_ERROR(session().CheckUsable());
  if (state_->SetReleased(true)) return HasBeenReleased(info_.key);
  Status ended = WaitPending(Clock::now() + kReleaseDeadline);
  if (!ended.ok()) {
    state_->SetReleased(false);
    return ended;
  }
  Status released = session().control().ReleasePlan(info_.plan_id);
  if (!released.ok() && released.code() != Code::kNotFound) state_->SetReleased(false);
  return released;
}
TANDEM_CATCH_TO_STATUS

}  // namespace tandem::client
