// The gRPC plugin: every call of the core's `Control` over gRPC, with the session's token and a deadline.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <tuple>

#include "client/grpc_plugin/checkpoint_calls.h"
#include "client/grpc_plugin/convert.h"
#include "client/grpc_plugin/daemon_calls.h"
#include "client/grpc_plugin/event_stream.h"
#include "client/grpc_plugin/family.h"
#include "client/grpc_plugin/lease.h"
#include "client/grpc_plugin/library_lines.h"
#include "client/grpc_plugin/suspension_calls.h"
#include "client/lib/base/control_api.h"
#include "common/fd_socket.h"
#include "common/utf8.h"
#include "tandem/v1/tandem.grpc.pb.h"

namespace tandem::client {
namespace {

using Clock = std::chrono::steady_clock;

// For calls that wait for nobody.
constexpr Milliseconds kCallDeadline(20000);
// Short for a call made to learn whether the daemon lives.
constexpr Milliseconds kCheckDeadline(5000);

std::string ProgramName() {
  std::string name;
  std::ifstream file("/proc/self/comm");
  std::getline(file, name);
  return WithoutControlCharacters(name);  // a file may have any name
}

// The clients' directory as it is named here, absolute: it is opened again whenever the daemon has ended.
std::string AbsoluteDirectory(const std::string& directory) {
  std::error_code failed;
  const std::filesystem::path absolute = std::filesystem::absolute(directory, failed);
  return failed ? directory : absolute.string();
}

class GrpcControl final : public ClientControl {
 public:
  ~GrpcControl() override { Shutdown(); }

  Result<AttachInfo> Attach(const ConnectOptions& options, const std::string& runtime_dir,
                            ControlCallbacks callbacks) override;
  Result<JoinInfo> JoinGroup(const JoinOptions& options, const std::string& gpu_uuid, bool products) override;
  Status LeaveGroup(uint64_t group_id, Milliseconds deadline) override;
  Result<uint64_t> Empty(const TensorSpec& spec, const std::string& gpu_uuid,
                         const std::string& name) override;
  Result<RendezvousInfo> Rendezvous(uint64_t tensor_id, uint64_t group_id, Milliseconds deadline) override;
  Status Free(uint64_t tensor_id) override;
  Result<uint64_t> Register(const RegisterInfo& memory) override;
  Status Deregister(uint64_t registration_id) override;
  Result<PreparedPlan> Prepare(uint64_t group_id, const std::string& key, const OpRequest& request,
                               const PrepareTuning& tuning, Milliseconds deadline) override;
  Result<PlanInfo> Preview(uint64_t group_id, const OpRequest& request) override;
  Status ArmPlan(uint64_t plan_id, const Status& refusal, Milliseconds deadline) override;
  Status ReportFailure(const FailureReport& report) override;
  Result<RenewalInfo> StopForRenewal(uint64_t group_id, uint64_t finished, Milliseconds deadline) override;
  Result<RenewalInfo> EndRenewal(uint64_t group_id, Milliseconds deadline) override;
  Result<SuspensionInfo> Suspend(uint64_t group_id, SuspendStep step, uint64_t finished,
                                 Milliseconds deadline) override {
    return CallSuspendGroup(calls_, lease_, group_id, step, finished, deadline);
  }
  Result<uint64_t> ServeSuspension(ServePhase phase, uint64_t request, uint64_t step) override {
    return CallServeSuspension(calls_, phase, request, step);
  }
  Status BeginCheckpoint(Milliseconds deadline) override { return checkpoints_.Begin(deadline); }
  Status EndCheckpoint(Milliseconds deadline) override { return checkpoints_.End(deadline); }
  Result<std::vector<UniqueFd>> TakeShared(const std::vector<uint64_t>& registration_ids,
                                           const std::vector<uint64_t>& group_ids) override {
    return checkpoints_.TakeShared(registration_ids, group_ids, kCallDeadline);
  }
  Status ReleasePlan(uint64_t plan_id) override;
  Result<ChannelInfo> OpenChannel(const std::string& gpu_uuid, uint32_t entries) override;
  Status CloseChannel(uint64_t channel_id) override;
  Result<uint64_t> Launch(const DirectLaunch& launch) override;
  Status WaitLaunch(uint64_t launch_id, Milliseconds deadline) override;
  Status Check() override;
  Status Detach() override;
  void Shutdown() override;
  int LeaseFd() const override { return lease_.fd(); }

 private:
  using Attempt = DaemonCalls::Attempt;

  Result<RenewalInfo> Renew(v1::RenewGroupRequest request, Milliseconds deadline);
  // A client-placed plan's program and descriptors.
  Result<ClientPlacementInfo> TakePlacement(const v1::ClientPlacement& reply, const Attempt& attempt);

  Lease lease_;
  DaemonCalls calls_{lease_};
  ControlCallbacks callbacks_;
  EventStream events_{lease_, calls_};
  CheckpointCalls checkpoints_{lease_, calls_, events_};
  std::mutex cancelled_mutex_;
  std::set<std::tuple<std::string, std::string, int>> cancelled_joins_;  // guarded: job key, name, rank
  std::atomic<bool> stopping_{false};
};

Result<AttachInfo> GrpcControl::Attach(const ConnectOptions& options, const std::string& runtime_dir,
                                       ControlCallbacks callbacks) {
  TANDEM_RETURN_IF_ERROR(CheckText("name", options.name));
  TANDEM_RETURN_IF_ERROR(CheckGrpcsDescriptors());
  const std::string directory = AbsoluteDirectory(runtime_dir), lease = directory + "/lease.sock";
  TANDEM_ASSIGN_OR_RETURN(
      v1::AttachReply reply,
      lease_.Attach(lease, options.name.empty() ? ProgramName() : options.name, options.deadline));
  // The daemon names its socket by the node's path. A container may have the directory elsewhere.
  const std::string socket = std::filesystem::path(reply.grpc_socket()).filename().string();
  // gRPC would try again until its deadline, and name no reason.
  TANDEM_RETURN_IF_ERROR(CheckMayConnect(directory + "/" + socket));
  calls_.Open(reply.token(), lease, directory + "/" + socket);
  callbacks_ = std::move(callbacks);
  calls_.CancelBy(callbacks_.cancellation);
  TANDEM_RETURN_IF_ERROR(lease_.Start(callbacks_.on_lost));
  TANDEM_RETURN_IF_ERROR(events_.Start(callbacks_.on_event));

  AttachInfo info;
  info.session_id = reply.session_id();
  info.daemon_version = reply.daemon_version();
  info.instance_id = reply.instance_id();
  info.backend = reply.backend();
  for (const v1::Gpu& gpu : reply.gpus()) {
    info.gpus.push_back({gpu.uuid(), gpu.model(), gpu.index(), gpu.memory_bytes()});
  }
  info.limits.insert(reply.limits().begin(), reply.limits().end());
  return info;
}

void GrpcControl::Shutdown() {
  if (stopping_.exchange(true)) return;
  events_.Silence();
  lease_.Stop();
  events_.Stop();
}

Result<JoinInfo> GrpcControl::JoinGroup(const JoinOptions& options, const std::string& gpu_uuid,
                                        bool products) {
  TANDEM_RETURN_IF_ERROR(CheckTexts(options, gpu_uuid));
  v1::JoinGroupRequest request;
  v1::JoinGroupReply reply;
  request.set_job_key(options.job_key);
  request.set_name(options.name);
  request.set_world_size(options.world_size);
  request.set_rank(options.rank);
  request.set_gpu_uuid(gpu_uuid);
  request.mutable_options()->insert(options.options.begin(), options.options.end());
  request.set_client_products(products);
  request.set_renews_engines(true);
  request.set_client_signal_bytes(plan::kClientSignalAreaBytes);
  request.set_deadline_ms(DeadlineMs(options.deadline));
  request.set_launch_deadline_ms(
      static_cast<uint64_t>(std::max<int64_t>(options.launch_deadline.count(), 0)));
  request.set_on_slow_placement(static_cast<uint32_t>(options.on_slow_placement));
  const auto place = std::make_tuple(options.job_key, options.name, options.rank);
  {
    // All ranks may have come before the daemon heard of the cancellation.
    std::lock_guard lock(cancelled_mutex_);
    request.set_again(cancelled_joins_.erase(place) != 0);
  }
  const Status joined = calls_.CallAgain(&v1::Tandem::StubInterface::JoinGroup, request, &reply,
                                         options.deadline + kAnswerTime);
  if (joined.code() == Code::kCancelled) {
    std::lock_guard lock(cancelled_mutex_);
    cancelled_joins_.insert(place);
  }
  TANDEM_RETURN_IF_ERROR(joined);
  JoinInfo info;
  info.group_id = reply.group_id();
  info.incarnation = reply.incarnation();
  info.generation = reply.generation();
  info.topology_class = reply.topology_class();
  info.placement = reply.placement();
  info.renews_engines = reply.renews_engines();
  info.gpu_uuids.assign(reply.gpu_uuids().begin(), reply.gpu_uuids().end());
  info.link_counts.assign(reply.link_counts().begin(), reply.link_counts().end());
  for (const v1::Offer& offer : reply.offers()) {
    info.offers.push_back({static_cast<Op>(offer.op()), static_cast<Algorithm>(offer.algorithm()),
                           offer.available(), offer.reason()});
  }
  return info;
}

Status GrpcControl::LeaveGroup(uint64_t group_id, Milliseconds deadline) {
  v1::LeaveGroupRequest request;
  v1::LeaveGroupReply reply;
  request.set_group_id(group_id);
  request.set_deadline_ms(DeadlineMs(deadline));
  return calls_.EndAgain(&v1::Tandem::StubInterface::LeaveGroup, request, &reply, deadline + kAnswerTime);
}

Result<uint64_t> GrpcControl::Empty(const TensorSpec& spec, const std::string& gpu_uuid,
                                    const std::string& name) {
  TANDEM_RETURN_IF_ERROR(CheckText("gpu_uuid", gpu_uuid));
  TANDEM_RETURN_IF_ERROR(CheckText("persistent_name", name));
  v1::EmptyRequest request;
  v1::EmptyReply reply;
  ToProto(spec, request.mutable_spec());
  request.set_gpu_uuid(gpu_uuid);
  request.set_persistent_name(name);
  TANDEM_RETURN_IF_ERROR(calls_.CallAgain(&v1::Tandem::StubInterface::Empty, request, &reply, kCallDeadline));
  return reply.tensor_id();
}

Result<RendezvousInfo> GrpcControl::Rendezvous(uint64_t tensor_id, uint64_t group_id, Milliseconds deadline) {
  v1::RendezvousRequest request;
  request.set_tensor_id(tensor_id);
  request.set_group_id(group_id);
  request.set_deadline_ms(DeadlineMs(deadline));
  return calls_.Repeat(deadline + kAnswerTime, [&](const Attempt& attempt) -> Result<RendezvousInfo> {
    v1::RendezvousReply reply;
    TANDEM_RETURN_IF_ERROR(calls_.Call(&v1::Tandem::StubInterface::Rendezvous, request, &reply, attempt));
    RendezvousInfo info;
    info.rank = reply.rank();
    info.world_size = reply.world_size();
    info.buffer_bytes = reply.buffer_bytes();
    info.pad_bytes = reply.signal_pad_bytes();
    info.segment_bytes = reply.segment_bytes();
    info.buffer_offset = reply.buffer_offset();
    info.pad_offset = reply.pad_offset();
    info.registration_id = reply.registration_id();
    info.segment_ids.assign(reply.segment_ids().begin(), reply.segment_ids().end());
    TANDEM_ASSIGN_OR_RETURN(info.segments, lease_.Take(reply.transfer_id(), attempt.daemon, attempt.end));
    return info;
  });
}

Status GrpcControl::Free(uint64_t tensor_id) {
  v1::FreeRequest request;
  v1::FreeReply reply;
  request.set_tensor_id(tensor_id);
  return calls_.EndAgain(&v1::Tandem::StubInterface::Free, request, &reply, kCallDeadline);
}

Result<uint64_t> GrpcControl::Register(const RegisterInfo& memory) {
  TANDEM_RETURN_IF_ERROR(CheckText("gpu_uuid", memory.gpu_uuid));
  v1::RegisterTensorRequest request;
  request.set_gpu_uuid(memory.gpu_uuid);
  request.set_bytes(memory.bytes);
  request.set_offset(memory.offset);
  request.set_ipc_handle(memory.ipc_handle);
  if (memory.ipc_handle.empty())
    request.mutable_chunk_bytes()->Add(memory.chunk_bytes.begin(), memory.chunk_bytes.end());
  return calls_.Repeat(kCallDeadline, [&](const Attempt& attempt) -> Result<uint64_t> {
    v1::RegisterTensorReply reply;
    while (true) {
      if (memory.ipc_handle.empty()) {
        TANDEM_ASSIGN_OR_RETURN(const uint64_t transfer, lease_.Send(memory.fds));
        request.set_transfer_id(transfer);
      }
      const Status status = calls_.Call(&v1::Tandem::StubInterface::RegisterTensor, request, &reply, attempt);
      if (status.ok()) return reply.registration_id();
      if (status.detail().reason != "NO_TRANSFER" || DaemonCalls::Clock::now() >= attempt.end) return status;
      // The descriptors went to the daemon before, or a busy node delays them or the call for some seconds.
      if (lease_.AwaitAttached(attempt.end) != attempt.daemon) return Restarting();
    }
  });
}

Status GrpcControl::Deregister(uint64_t registration_id) {
  v1::DeregisterRequest request;
  v1::DeregisterReply reply;
  request.set_registration_id(registration_id);
  return calls_.EndAgain(&v1::Tandem::StubInterface::Deregister, request, &reply, kCallDeadline);
}

Result<ClientPlacementInfo> GrpcControl::TakePlacement(const v1::ClientPlacement& reply,
                                                       const Attempt& attempt) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<UniqueFd> fds,
                          lease_.Take(reply.transfer_id(), attempt.daemon, attempt.end));
  return ReadPlacement(reply, std::move(fds));
}

Status GrpcControl::ArmPlan(uint64_t plan_id, const Status& refusal, Milliseconds deadline) {
  v1::ArmPlanRequest request;
  v1::ArmPlanReply reply;
  request.set_plan_id(plan_id);
  if (!refusal.ok()) ToProto(refusal, request.mutable_refusal());
  request.set_deadline_ms(DeadlineMs(deadline));
  return calls_.CallAgain(&v1::Tandem::StubInterface::ArmPlan, request, &reply, deadline + kAnswerTime);
}

Status GrpcControl::ReportFailure(const FailureReport& report) {
  v1::ReportFailureRequest request;
  v1::ReportFailureReply reply;
  request.set_group_id(report.group_id);
  request.set_plan_id(report.plan_id);
  request.set_launch(report.launch);
  request.set_awaited_rank(report.awaited_rank);
  request.set_renewals(report.renewals);
  request.set_counted_rows(report.rows + 1);
  ToProto(report.status, request.mutable_status());
  // Nobody else makes it: not even without a daemon is it given up.
  return calls_.CallAgain(&v1::Tandem::StubInterface::ReportFailure, request, &reply,
                          kCheckDeadline + lease_.grace());
}

Result<RenewalInfo> GrpcControl::Renew(v1::RenewGroupRequest request, Milliseconds deadline) {
  v1::RenewGroupReply reply;
  request.set_deadline_ms(DeadlineMs(deadline));
  TANDEM_RETURN_IF_ERROR(
      calls_.CallAgain(&v1::Tandem::StubInterface::RenewGroup, request, &reply, deadline + kAnswerTime));
  return RenewalInfo{reply.number(), reply.renewals()};
}

Result<RenewalInfo> GrpcControl::StopForRenewal(uint64_t group_id, uint64_t finished, Milliseconds deadline) {
  v1::RenewGroupRequest request;
  request.set_group_id(group_id);
  request.set_step(v1::RenewGroupRequest::STOPPED);
  request.set_number(finished);
  return Renew(std::move(request), deadline);
}

Result<RenewalInfo> GrpcControl::EndRenewal(uint64_t group_id, Milliseconds deadline) {
  v1::RenewGroupRequest request;
  request.set_group_id(group_id);
  request.set_step(v1::RenewGroupRequest::READY);
  return Renew(std::move(request), deadline);
}

Result<PreparedPlan> GrpcControl::Prepare(uint64_t group_id, const std::string& key, const OpRequest& op,
                                          const PrepareTuning& tuning, Milliseconds deadline) {
  TANDEM_RETURN_IF_ERROR(CheckText("key", key));
  v1::PrepareRequest request;
  request.set_group_id(group_id);
  request.set_key(key);
  ToProto(op, request.mutable_request());
  request.set_deadline_ms(DeadlineMs(deadline));
  request.set_can_measure(tuning.can_measure);
  request.set_cannot_measure(AsUtf8(tuning.cannot_measure));
  request.set_next_client_launch(tuning.next_client_launch);
  request.set_times_placement(static_cast<uint32_t>(tuning.placement));
  for (const MeasuredTime& time : tuning.times) ToProto(time, request.add_times());
  return calls_.Repeat(deadline + kAnswerTime, [&](const Attempt& attempt) -> Result<PreparedPlan> {
    v1::PrepareReply reply;
    TANDEM_RETURN_IF_ERROR(calls_.Call(&v1::Tandem::StubInterface::Prepare, request, &reply, attempt));
    PreparedPlan prepared;
    prepared.info = FromProto(reply.plan());
    for (const uint32_t algorithm : reply.measure())
      prepared.measure.push_back(static_cast<Algorithm>(algorithm));
    if (!reply.has_client()) return prepared;
    Result<ClientPlacementInfo> placement = TakePlacement(reply.client(), attempt);
    if (placement.ok()) {
      if (const Status family = AddFamily(reply, &*placement); !family.ok()) placement = family;
    }
    if (!placement.ok() && !IsRestart(placement.status())) {
      // The other ranks need not wait for this one.
      (void)ArmPlan(prepared.info.plan_id, placement.status(), Milliseconds(1));
      (void)ReleasePlan(prepared.info.plan_id);
    }
    TANDEM_RETURN_IF_ERROR(placement.status());
    prepared.client = std::move(*placement);
    return prepared;
  });
}

Result<PlanInfo> GrpcControl::Preview(uint64_t group_id, const OpRequest& op) {
  v1::PreviewRequest request;
  v1::PreviewReply reply;
  request.set_group_id(group_id);
  ToProto(op, request.mutable_request());
  TANDEM_RETURN_IF_ERROR(
      calls_.CallAgain(&v1::Tandem::StubInterface::Preview, request, &reply, kCallDeadline));
  return FromProto(reply.plan());
}

Status GrpcControl::ReleasePlan(uint64_t plan_id) {
  v1::ReleasePlanRequest request;
  v1::ReleasePlanReply reply;
  request.set_plan_id(plan_id);
  return calls_.EndAgain(&v1::Tandem::StubInterface::ReleasePlan, request, &reply, kCallDeadline);
}

Result<ChannelInfo> GrpcControl::OpenChannel(const std::string& gpu_uuid, uint32_t entries) {
  TANDEM_RETURN_IF_ERROR(CheckText("gpu_uuid", gpu_uuid));
  v1::OpenChannelRequest request;
  request.set_gpu_uuid(gpu_uuid);
  request.set_entries(entries);
  return calls_.Repeat(kCallDeadline, [&](const Attempt& attempt) -> Result<ChannelInfo> {
    v1::OpenChannelReply reply;
    TANDEM_RETURN_IF_ERROR(calls_.Call(&v1::Tandem::StubInterface::OpenChannel, request, &reply, attempt));
    ChannelInfo info;
    info.channel_id = reply.channel_id();
    info.generation = reply.generation();
    Result<std::vector<UniqueFd>> fds = lease_.Take(reply.transfer_id(), attempt.daemon, attempt.end);
    if (fds.ok() && fds->size() != 2)
      fds = Internal("a channel came with " + std::to_string(fds->size()) + " descriptors");
    if (!fds.ok()) {
      (void)CloseChannel(info.channel_id);
      return fds.status();
    }
    info.ring = std::move((*fds)[0]);
    info.words = std::move((*fds)[1]);
    return info;
  });
}

Status GrpcControl::CloseChannel(uint64_t channel_id) {
  v1::CloseChannelRequest request;
  v1::CloseChannelReply reply;
  request.set_channel_id(channel_id);
  return calls_.EndAgain(&v1::Tandem::StubInterface::CloseChannel, request, &reply, kCallDeadline);
}

Result<uint64_t> GrpcControl::Launch(const DirectLaunch& launch) {
  v1::LaunchRequest request;
  v1::LaunchReply reply;
  request.set_plan_id(launch.plan_id);
  for (const auto& [registration, offset] : launch.bindings) {
    v1::Binding* binding = request.add_bindings();
    binding->set_registration_id(registration);
    binding->set_offset(offset);
  }
  request.set_deadline_ms(launch.deadline_ms);
  request.set_tag(launch.tag);
  request.set_generation(launch.generation);
  const auto end = Clock::now() + kCallDeadline;
  const uint64_t daemon = lease_.AwaitAttached(end);
  const Status status =
      calls_.Call(&v1::Tandem::StubInterface::Launch, request, &reply, Attempt{end, daemon});
  // Twice would be two launches: the caller decides, once the session goes on.
  if (IsRestart(status) && lease_.AwaitNext(daemon, end, status.detail().reason == "RESTARTING")) {
    return Unavailable("tandemd restarted during the call: the launch may have been made")
        .WithDetail({.reason = "RESTARTING"});
  }
  TANDEM_RETURN_IF_ERROR(status);
  return reply.launch_id();
}

Status GrpcControl::WaitLaunch(uint64_t launch_id, Milliseconds deadline) {
  v1::WaitLaunchRequest request;
  v1::WaitLaunchReply reply;
  request.set_launch_id(launch_id);
  request.set_deadline_ms(DeadlineMs(deadline));
  request.set_poll(deadline.count() == 0);
  return calls_.CallAgain(&v1::Tandem::StubInterface::WaitLaunch, request, &reply, deadline + kAnswerTime);
}

Status GrpcControl::Check() {
  // Id 0 is nobody's: an answer about it is an answer.
  v1::CloseChannelRequest request;
  v1::CloseChannelReply reply;
  Status status = calls_.CallAgain(&v1::Tandem::StubInterface::CloseChannel, request, &reply, kCheckDeadline);
  bool gone = status.code() == Code::kUnavailable || status.code() == Code::kUnauthenticated ||
              status.code() == Code::kDeadlineExceeded;
  return gone ? status : Status::Ok();
}

Status GrpcControl::Detach() {
  v1::DetachRequest request;
  v1::DetachReply reply;
  return calls_.Repeat(kCallDeadline, [&](const Attempt& attempt) {
    const Status status = calls_.Call(&v1::Tandem::StubInterface::Detach, request, &reply, attempt);
    return attempt.again && status.detail().reason == "SESSION_LOST" ? Status::Ok() : status;
  });
}

}  // namespace
}  // namespace tandem::client

extern "C" __attribute__((visibility("default"))) tandem::client::ClientControl* tandem_grpc_create(
    int api_version, tandem::client::PluginLog* log) {
  if (api_version != tandem::client::kControlApiVersion) return nullptr;
  tandem::client::TakeLibraryLines(log);
  return new tandem::client::GrpcControl;
}
