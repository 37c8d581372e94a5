// Group: preparing plans, symmetric tensors, leaving.
#include <algorithm>
#include <thread>

#include "client/lib/autotune.h"
#include "client/lib/base/backoff.h"
#include "client/lib/base/log_hook.h"
#include "client/lib/client_plan.h"
#include "client/lib/engine_plan.h"
#include "client/lib/handles.h"
#include "common/deadline.h"
#include "common/exceptions.h"
#include "common/row_requests.h"

namespace tandem::client {
namespace {

// tandemd has checked the option.
bool IsOn(const JoinOptions& options, const std::string& option) {
  const auto found = options.options.find(option);
  return found != options.options.end() && found->second == "prepare";
}

// Of the plans that are measured, beside the plan's own; a key has at most 256 bytes.
constexpr char kProbe[] = " (autotune)";
constexpr size_t kMaxProbeKey = 200;

void LogPlan(const PlanInfo& info) {
  LogLine(ClientLogLevel::kInfo, [&] {
    return "plan '" + info.key + "': " + std::string(OpName(info.op)) + " by " +
           std::string(AlgorithmName(info.algorithm)) + ", " + info.reason;
  });
  for (const std::string& warning : info.warnings) {
    LogLine(ClientLogLevel::kWarning, [&] { return "plan '" + info.key + "': " + warning; });
  }
}

}  // namespace

GroupHandle::GroupHandle(std::shared_ptr<ClientSession> session, const JoinOptions& options, JoinInfo info)
    : session_(std::move(session)),
      info_(std::move(info)),
      name_(options.name),
      rank_(options.rank),
      world_size_(options.world_size),
      launch_deadline_(options.launch_deadline),
      autotune_(IsOn(options, "autotune")),
      gpu_uuid_(info_.gpu_uuids[static_cast<size_t>(options.rank)]),
      state_(std::make_shared<ClientGroupState>(info_.group_id, info_.generation)) {
  size_t world = static_cast<size_t>(world_size_);
  link_counts_.assign(world, std::vector<int>(world, 0));
  for (size_t i = 0; i < info_.link_counts.size() && i < world * world; ++i) {
    link_counts_[i / world][i % world] = info_.link_counts[i];
  }
  LogLine(ClientLogLevel::kInfo, [&] {
    return "group '" + name_ + "', number " + std::to_string(id()) + ": rank " + std::to_string(rank_) +
           " of " + std::to_string(world_size_) + " on " + gpu_uuid_;
  });
  session_->AddGroup(state_);
  session_->registrations().UseGpu(gpu_uuid_);
}

GroupHandle::~GroupHandle() {
  // A handle that goes is a clean leave: the daemon need not wait for anything, since no plan can be launched
  // any more.
  IgnoreExceptions([&] {
    if (left_.load() || !session_->CanCallDaemon()) return;
    ReportFinalProgress();
    for (const CancelledTensor& each : cancelled_) (void)session_->control().Free(each.tensor);
    (void)session_->control().LeaveGroup(id(), Milliseconds(5000));
  });
}

std::shared_ptr<ClientGroup> GroupHandle::client_group() {
  std::lock_guard lock(plans_mutex_);
  return client_group_;
}

void GroupHandle::ReportFinalProgress() {
  // Without the count tandemd ends the others' launches too, which is no worse than a rank that dies.
  if (const auto group = client_group()) (void)group->queue().ReportFinal();
}

Result<std::shared_ptr<Plan>> GroupHandle::Prepare(const std::string& key, const OpRequest& request,
                                                   Milliseconds deadline) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckUsable());
  const bool tuned =
      (request.autotune || autotune_) && request.algorithm == Algorithm::kAuto && !HasPlan(key);
  return tuned ? PrepareTuned(key, request, Bounded(deadline))
               : PrepareOnce(key, request, {}, Bounded(deadline));
}
TANDEM_CATCH_TO_STATUS

Result<PlanInfo> GroupHandle::Preview(const OpRequest& request) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckUsable());
  return session_->control().Preview(id(), request);
}
TANDEM_CATCH_TO_STATUS

bool GroupHandle::HasPlan(const std::string& key) {
  std::lock_guard lock(plans_mutex_);
  return std::any_of(plans_.begin(), plans_.end(), [&](const auto& entry) {
    const std::shared_ptr<Plan> plan = entry.second.lock();
    return plan != nullptr && plan->info().key == key;
  });
}

Result<std::shared_ptr<Plan>> GroupHandle::PrepareTuned(const std::string& key, OpRequest request,
                                                        Milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  const auto left = [end] { return TimeLeft(end); };
  request.autotune = false;
  PrepareTuning tuning;
  Status status;
  // On a separate thread: the caller's current CUDA context stays what it is.
  const auto measure = [&, cancellation = ThisThreadsCancellation()] {
    ThisThreadsCancellation() = cancellation;
    const std::string probe_key = key.substr(0, kMaxProbeKey) + kProbe;
    const OpRequest measured = WithoutNorm(request);
    Autotune autotune(*this, measured, end);
    const Status ready = autotune.Ready(session_->info().backend, [this](size_t bytes) {
      return AllocateRegistered(session_, bytes, gpu_uuid_);
    });
    if (!ready.ok()) tuning.cannot_measure = ready.message();
    OpRequest probe_request = measured;
    probe_request.on_unfused = OnUnfused::kAllow;
    PreparedPlan reported;
    PrepareTuning asked;
    asked.can_measure = ready.ok();
    Result<std::shared_ptr<Plan>> probe = PrepareOnce(probe_key, probe_request, asked, left(), &reported);
    // The request itself has the error.
    if (!probe.ok() || reported.measure.empty()) return;
    tuning.placement = reported.client.has_value() ? PlanPlacement::kClient : PlanPlacement::kEngine;
    const auto prepare = [&](const std::string& one, const OpRequest& by, Milliseconds time) {
      return PrepareOnce(one, by, {}, time);
    };
    Result<std::vector<MeasuredTime>> times =
        autotune.Measure(probe_key, *std::move(probe), reported.measure, tuning.placement, prepare);
    status = times.status();
    if (times.ok()) tuning.times = *std::move(times);
  };
  TANDEM_ASSIGN_OR_RETURN(std::thread measurement, StartThread("the measurement", [&] {
                            try {
                              measure();
                            } catch (...) {
                              status = StatusOfException();
                            }
                          }));
  measurement.join();
  if (status.detail().reason == "NOT_ENDED") {
    return DeadlineExceeded("autotune of '" + key + "' has not ended by the deadline of prepare: " +
                            status.message() + "; give it more time, or look for a rank that came late")
        .WithDetail(status.detail());
  }
  TANDEM_RETURN_IF_ERROR(status.WithContext("autotune"));
  return PrepareOnce(key, request, tuning, left());
}

Result<std::shared_ptr<Plan>> GroupHandle::PrepareOnce(const std::string& key, const OpRequest& request,
                                                       const PrepareTuning& tuning, Milliseconds deadline,
                                                       PreparedPlan* reported) {
  PrepareTuning reported_tuning = tuning;
  session_->ReapAll();
  if (const auto group = client_group()) reported_tuning.next_client_launch = group->NextLaunch();
  TANDEM_ASSIGN_OR_RETURN(PreparedPlan prepared,
                          session_->control().Prepare(id(), key, request, reported_tuning, deadline));
  PlanInfo& info = prepared.info;
  if (info.slot_bytes.size() > static_cast<size_t>(kMaxBindings)) {
    return InvalidArgument("a plan has at most " + std::to_string(kMaxBindings) + " slots, not " +
                           std::to_string(info.slot_bytes.size()));
  }
  // A retry of a key is the same plan, and its launches are counted together: one handle.
  {
    std::lock_guard lock(plans_mutex_);
    const auto known = plans_.find(info.plan_id);
    if (known != plans_.end()) {
      if (std::shared_ptr<Plan> plan = known->second.lock()) return plan;
    }
  }
  std::shared_ptr<MappedPlan> mapped;
  if (prepared.client.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(mapped, ArmPlan(prepared, request, deadline));
  }
  if (reported != nullptr) {
    reported->measure = prepared.measure;
    reported->client = std::move(prepared.client);
  }
  std::lock_guard lock(plans_mutex_);
  std::weak_ptr<Plan>& known = plans_[info.plan_id];
  if (std::shared_ptr<Plan> plan = known.lock()) return plan;
  std::shared_ptr<Plan> plan;
  if (mapped != nullptr) {
    plan = std::make_shared<ClientPlan>(shared_from_this(), std::move(info), request, std::move(mapped));
  } else {
    plan = std::make_shared<EnginePlan>(shared_from_this(), std::move(info), request);
  }
  known = plan;
  LogPlan(plan->info());
  std::erase_if(plans_, [](const auto& entry) { return entry.second.expired(); });
  return plan;
}

Result<std::shared_ptr<MappedPlan>> GroupHandle::MapPlan(const PreparedPlan& prepared,
                                                         const OpRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(ClientDevice * device, session_->device());
  std::shared_ptr<ClientGroup> group;
  {
    std::lock_guard lock(plans_mutex_);
    if (client_group_ == nullptr) {
      TANDEM_ASSIGN_OR_RETURN(auto reports, session_->FailureReports());
      TANDEM_ASSIGN_OR_RETURN(VerdictPage page, VerdictPage::Map(prepared.client->verdict_page.get()));
      auto made = std::make_shared<ClientGroup>(id(), rank_, std::move(page), std::move(reports));
      TANDEM_ASSIGN_OR_RETURN(auto queue, device->MakeClientQueue(gpu_uuid_, *made));
      made->SetQueue(std::move(queue));
      made->CountPage(session_->memory());
      client_group_ = std::move(made);
      session_->AddClientGroup(client_group_);
    }
    group = client_group_;
  }
  TANDEM_ASSIGN_OR_RETURN(OpRequest bound, AtBound(request, world_size_));
  bound.determinism = prepared.info.determinism;  // the group's may be the stronger one; members keep it
  return MappedPlan::Make(*prepared.client, prepared.info, bound, *device, session_->segments(),
                          session_->memory(), gpu_uuid_, std::move(group));
}

Result<std::shared_ptr<MappedPlan>> GroupHandle::ArmPlan(const PreparedPlan& prepared,
                                                         const OpRequest& request, Milliseconds deadline) {
  Result<std::shared_ptr<MappedPlan>> made = MapPlan(prepared, request);
  // Ranks that can launch it hear of one that cannot, and no launch waits for it.
  const Status armed = session_->control().ArmPlan(prepared.info.plan_id, made.status(), deadline);
  if (armed.ok() && made.ok()) return made;
  (void)session_->control().ReleasePlan(prepared.info.plan_id);
  return made.ok() ? armed : made.status();
}

void GroupHandle::AddTensor(const std::shared_ptr<TensorHandle>& tensor) {
  std::lock_guard lock(tensors_mutex_);
  std::erase_if(tensors_, [](const auto& known) { return known.expired(); });
  tensors_.push_back(tensor);
}

std::shared_ptr<TensorHandle> GroupHandle::FindTensor(const std::byte* data, size_t bytes) {
  std::lock_guard lock(tensors_mutex_);
  for (const auto& known : tensors_) {
    std::shared_ptr<TensorHandle> tensor = known.lock();
    if (tensor == nullptr || data < tensor->data()) continue;
    const auto offset = static_cast<size_t>(data - tensor->data());
    if (offset <= tensor->bytes() && bytes <= tensor->bytes() - offset) return tensor;
  }
  return nullptr;
}

uint64_t GroupHandle::TakeCancelled(const std::vector<int64_t>& shape, DType dtype) {
  std::lock_guard lock(tensors_mutex_);
  const auto same = std::find_if(cancelled_.begin(), cancelled_.end(), [&](const CancelledTensor& each) {
    return each.shape == shape && each.dtype == dtype;
  });
  if (same == cancelled_.end()) return 0;
  const uint64_t tensor = same->tensor;
  cancelled_.erase(same);
  return tensor;
}

Result<std::shared_ptr<SymmetricTensor>> GroupHandle::Allocate(const std::vector<int64_t>& shape, DType dtype,
                                                               const std::string& persistent_name,
                                                               Milliseconds deadline) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckUsable());
  const bool owned = persistent_name.empty();
  uint64_t tensor = owned ? TakeCancelled(shape, dtype) : 0;
  if (tensor == 0) {
    TANDEM_ASSIGN_OR_RETURN(tensor,
                            session_->control().Empty({dtype, shape, {}}, gpu_uuid_, persistent_name));
  }
  Result<RendezvousInfo> info = session_->control().Rendezvous(tensor, id(), Bounded(deadline));
  if (!info.ok() && owned && info.status().code() == Code::kCancelled) {
    // All ranks may have met before the daemon heard of the cancellation.
    std::lock_guard lock(tensors_mutex_);
    cancelled_.push_back({shape, dtype, tensor});
  } else if (!info.ok() && owned) {
    (void)session_->control().Free(tensor);
  }
  if (!info.ok()) return info.status();
  return TensorHandle::Make(shared_from_this(), *info, owned ? tensor : 0);
}
TANDEM_CATCH_TO_STATUS

Status GroupHandle::AwaitLaunches(std::chrono::steady_clock::time_point end) {
  PollBackoff backoff;
  while (state_->pending.load(std::memory_order_acquire) != 0) {
    session_->ReapAll();
    if (state_->pending.load(std::memory_order_acquire) == 0) break;
    TANDEM_RETURN_IF_ERROR(CheckCancelled());
    if (std::chrono::steady_clock::now() >= end)
      return DeadlineExceeded("launches of this rank have not ended").WithDetail({.reason = "NOT_ENDED"});
    backoff.Pause();
  }
  return Status::Ok();
}

Status GroupHandle::Leave(Milliseconds deadline) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckUsable());
  auto end = std::chrono::steady_clock::now() + Bounded(deadline);
  TANDEM_RETURN_IF_ERROR(AwaitLaunches(end).WithContext("the group is not left"));
  ReportFinalProgress();
  Status status = session_->control().LeaveGroup(id(), TimeLeft(end));
  // tandemd may have taken an earlier call, whose answer nobody awaited.
  const bool has_left = leave_unanswered_.load() && status.code() == Code::kNotFound;
  if (!status.ok() && !has_left) {
    leave_unanswered_.store(true);
    return status;
  }
  left_.store(true);
  state_->Break(FailedPrecondition("this rank has left the group"));
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

Result<RenewalInfo> GroupHandle::MeetForRenewal(ClientGroup* group,
                                                std::chrono::steady_clock::time_point end) {
  uint64_t finished = 0;
  if (group != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(finished, group->queue().Stop(end));
  }
  if (info_.renews_engines) TANDEM_RETURN_IF_ERROR(AwaitLaunches(end));
  // The report of a failure goes before the renewal that it is about.
  PollBackoff backoff;
  session_->ReapAll();
  while (group != nullptr && !group->BeginRenewal() && group->AwaitsVerdict()) {
    if (std::chrono::steady_clock::now() >= end)
      return DeadlineExceeded("the daemon has not judged a failure").WithDetail({.reason = "DAEMON_SLOW"});
    backoff.Pause();
    session_->ReapAll();
  }
  TANDEM_ASSIGN_OR_RETURN(const RenewalInfo stopped,
                          session_->control().StopForRenewal(id(), finished, TimeLeft(end)));
  if (group != nullptr) TANDEM_RETURN_IF_ERROR(group->queue().Restart(stopped.number));
  return session_->control().EndRenewal(id(), TimeLeft(end));
}

Status GroupHandle::Renew(Milliseconds deadline) try {
  TANDEM_RETURN_IF_ERROR(session_->CheckLaunchable());
  TANDEM_RETURN_IF_ERROR(state_->Broken());
  const std::shared_ptr<ClientGroup> group = client_group();
  if (group == nullptr && !info_.renews_engines) return Status::Ok();
  const auto end = std::chrono::steady_clock::now() + Bounded(deadline);
  Result<RenewalInfo> renewed = MeetForRenewal(group.get(), end);
  // A peer has begun again, or the daemon: so do all.
  while (renewed.status().code() == Code::kAborted && std::chrono::steady_clock::now() < end)
    renewed = MeetForRenewal(group.get(), end);
  if (!renewed.ok()) {
    if (group != nullptr) group->FailRenewal();
    return renewed.status();
  }
  if (group != nullptr) group->EndRenewal(renewed->renewals);
  std::vector<std::shared_ptr<Plan>> plans;
  {
    std::lock_guard lock(plans_mutex_);
    for (const auto& [plan_id, known] : plans_) {
      if (auto plan = known.lock()) plans.push_back(std::move(plan));
    }
  }
  for (const auto& plan : plans) static_cast<PlanHandle&>(*plan).DropFailures();
  return Status::Ok();
}
TANDEM_CATCH_TO_STATUS

}  // namespace tandem::client
