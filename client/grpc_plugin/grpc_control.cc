// The gRPC plugin: every call of the core's `Control` over gRPC, with the session's token and a deadline.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "client/grpc_plugin/convert.h"
#include "client/grpc_plugin/lease.h"
#include "client/lib/control_api.h"
#include "program/program_codec.h"
#include "tandem/engine/v1/program.pb.h"
#include "tandem/v1/tandem.grpc.pb.h"

namespace tandem::client {
namespace {

using Clock = std::chrono::steady_clock;

// For calls that wait for nobody.
constexpr Milliseconds kCallDeadline(20000);
// Time for the daemon beyond the caller's deadline, to report who is late.
constexpr Milliseconds kAnswerTime(3000);
// Short for a call made to learn whether the daemon lives.
constexpr Milliseconds kCheckDeadline(5000);

std::string Hex(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::string ProgramName() {
  std::string name;
  std::ifstream file("/proc/self/comm");
  std::getline(file, name);
  return name;
}

uint32_t DeadlineMs(Milliseconds deadline) {
  return static_cast<uint32_t>(std::clamp<int64_t>(deadline.count(), 1, UINT32_MAX));
}

class GrpcControl final : public ClientControl {
 public:
  ~GrpcControl() override { Shutdown(); }

  Result<AttachInfo> Attach(const ConnectOptions& options, const std::string& runtime_dir,
                            ControlCallbacks callbacks) override;
  Result<JoinInfo> JoinGroup(const JoinOptions& options, const std::string& gpu_uuid) override;
  Status LeaveGroup(uint64_t group_id, Milliseconds deadline) override;
  Result<uint64_t> Empty(const TensorSpec& spec, const std::string& gpu_uuid,
                         const std::string& name) override;
  Result<RendezvousInfo> Rendezvous(uint64_t tensor_id, uint64_t group_id, Milliseconds deadline) override;
  Status Free(uint64_t tensor_id) override;
  Result<uint64_t> Register(const RegisterInfo& memory) override;
  Status Deregister(uint64_t registration_id) override;
  Result<PreparedPlan> Prepare(uint64_t group_id, const std::string& key, const OpRequest& request,
                               Milliseconds deadline) override;
  Status ArmPlan(uint64_t plan_id, const Status& refusal, Milliseconds deadline) override;
  Status ReportFailure(const FailureReport& report) override;
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
  template <typename Request, typename Reply>
  using Method = grpc::Status (v1::Tandem::StubInterface::*)(grpc::ClientContext*, const Request&, Reply*);

  template <typename Request, typename Reply>
  Status Call(Method<Request, Reply> method, const Request& request, Reply* reply, Milliseconds deadline) {
    if (stub_ == nullptr) return FailedPrecondition("the client is not attached");
    grpc::ClientContext context;
    context.AddMetadata("tandem-token", token_);
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    return FromGrpc((stub_.get()->*method)(&context, request, reply), context, address_);
  }
  // A client-placed plan's program and descriptors.
  Result<ClientPlacementInfo> TakePlacement(const v1::ClientPlacement& reply, Clock::time_point end);
  void ReadEvents();

  Lease lease_;
  std::string token_, address_;
  std::unique_ptr<v1::Tandem::StubInterface> stub_;
  ControlCallbacks callbacks_;
  std::unique_ptr<grpc::ClientContext> events_context_;
  std::thread events_;
  std::atomic<bool> stopping_{false};
};

Result<AttachInfo> GrpcControl::Attach(const ConnectOptions& options, const std::string& runtime_dir,
                                       ControlCallbacks callbacks) {
  TANDEM_ASSIGN_OR_RETURN(
      v1::AttachReply reply,
      lease_.Attach(runtime_dir + "/lease.sock", options.name.empty() ? ProgramName() : options.name,
                    options.deadline));
  token_ = Hex(reply.token());
  address_ = runtime_dir + "/lease.sock";
  grpc::ChannelArguments arguments;
  // Sessions are not to share a connection, nor to be slow to see a daemon that has come back.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  // Also the time that one attempt gets: a busy node may take long to answer, a dead daemon's socket refuses
  // at once.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  stub_ = v1::Tandem::NewStub(grpc::CreateCustomChannel("unix:" + reply.grpc_socket(),
                                                        grpc::InsecureChannelCredentials(), arguments));
  callbacks_ = std::move(callbacks);
  events_context_ = std::make_unique<grpc::ClientContext>();
  events_context_->AddMetadata("tandem-token", token_);
  lease_.Start(callbacks_.on_lost);
  events_ = std::thread([this] { ReadEvents(); });

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

void GrpcControl::ReadEvents() {
  auto reader = stub_->Events(events_context_.get(), v1::EventsRequest());
  v1::Event event;
  while (reader->Read(&event)) {
    if (!stopping_.load()) callbacks_.on_event(FromProto(event));
  }
  // Why it ended does not matter: the lease says whether the daemon is gone.
  reader->Finish();
}

void GrpcControl::Shutdown() {
  if (stopping_.exchange(true)) return;
  if (events_context_ != nullptr) events_context_->TryCancel();
  if (events_.joinable()) events_.join();
  lease_.Stop();
}

Result<JoinInfo> GrpcControl::JoinGroup(const JoinOptions& options, const std::string& gpu_uuid) {
  v1::JoinGroupRequest request;
  v1::JoinGroupReply reply;
  request.set_job_key(options.job_key);
  request.set_name(options.name);
  request.set_world_size(options.world_size);
  request.set_rank(options.rank);
  request.set_gpu_uuid(gpu_uuid);
  request.mutable_options()->insert(options.options.begin(), options.options.end());
  request.set_deadline_ms(DeadlineMs(options.deadline));
  request.set_launch_deadline_ms(
      static_cast<uint64_t>(std::max<int64_t>(options.launch_deadline.count(), 0)));
  request.set_on_slow_placement(static_cast<uint32_t>(options.on_slow_placement));
  TANDEM_RETURN_IF_ERROR(
      Call(&v1::Tandem::StubInterface::JoinGroup, request, &reply, options.deadline + kAnswerTime));
  JoinInfo info;
  info.group_id = reply.group_id();
  info.incarnation = reply.incarnation();
  info.generation = reply.generation();
  info.topology_class = reply.topology_class();
  info.placement = reply.placement();
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
  return Call(&v1::Tandem::StubInterface::LeaveGroup, request, &reply, deadline + kAnswerTime);
}

Result<uint64_t> GrpcControl::Empty(const TensorSpec& spec, const std::string& gpu_uuid,
                                    const std::string& name) {
  v1::EmptyRequest request;
  v1::EmptyReply reply;
  ToProto(spec, request.mutable_spec());
  request.set_gpu_uuid(gpu_uuid);
  request.set_persistent_name(name);
  TANDEM_RETURN_IF_ERROR(Call(&v1::Tandem::StubInterface::Empty, request, &reply, kCallDeadline));
  return reply.tensor_id();
}

Result<RendezvousInfo> GrpcControl::Rendezvous(uint64_t tensor_id, uint64_t group_id, Milliseconds deadline) {
  auto end = Clock::now() + deadline + kAnswerTime;
  v1::RendezvousRequest request;
  v1::RendezvousReply reply;
  request.set_tensor_id(tensor_id);
  request.set_group_id(group_id);
  request.set_deadline_ms(DeadlineMs(deadline));
  TANDEM_RETURN_IF_ERROR(
      Call(&v1::Tandem::StubInterface::Rendezvous, request, &reply, deadline + kAnswerTime));
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
  TANDEM_ASSIGN_OR_RETURN(info.segments, lease_.Take(reply.transfer_id(), end));
  return info;
}

Status GrpcControl::Free(uint64_t tensor_id) {
  v1::FreeRequest request;
  v1::FreeReply reply;
  request.set_tensor_id(tensor_id);
  return Call(&v1::Tandem::StubInterface::Free, request, &reply, kCallDeadline);
}

Result<uint64_t> GrpcControl::Register(const RegisterInfo& memory) {
  v1::RegisterTensorRequest request;
  v1::RegisterTensorReply reply;
  request.set_gpu_uuid(memory.gpu_uuid);
  request.set_bytes(memory.bytes);
  request.set_offset(memory.offset);
  if (memory.ipc_handle.empty()) {
    request.mutable_chunk_bytes()->Add(memory.chunk_bytes.begin(), memory.chunk_bytes.end());
    TANDEM_ASSIGN_OR_RETURN(uint64_t transfer, lease_.Send(memory.fds));
    request.set_transfer_id(transfer);
  } else {
    request.set_ipc_handle(memory.ipc_handle);
  }
  TANDEM_RETURN_IF_ERROR(Call(&v1::Tandem::StubInterface::RegisterTensor, request, &reply, kCallDeadline));
  return reply.registration_id();
}

Status GrpcControl::Deregister(uint64_t registration_id) {
  v1::DeregisterRequest request;
  v1::DeregisterReply reply;
  request.set_registration_id(registration_id);
  return Call(&v1::Tandem::StubInterface::Deregister, request, &reply, kCallDeadline);
}

Result<ClientPlacementInfo> GrpcControl::TakePlacement(const v1::ClientPlacement& reply,
                                                       Clock::time_point end) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<UniqueFd> fds, lease_.Take(reply.transfer_id(), end));
  const auto signals = static_cast<size_t>(reply.signal_segment_ids_size());
  const auto workspace = static_cast<size_t>(reply.workspace_segment_ids_size());
  engine::v1::RankProgram program;
  if (fds.size() != 1 + signals + workspace || !program.ParseFromString(reply.program())) {
    return Internal("the daemon's answer about a client-placed plan is malformed");
  }
  ClientPlacementInfo info;
  TANDEM_ASSIGN_OR_RETURN(info.program, plan::DecodeProgram(program));
  info.verdict_page = std::move(fds[0]);
  for (size_t i = 0; i < signals; ++i) info.signals.push_back(std::move(fds[1 + i]));
  for (size_t i = 0; i < workspace; ++i) info.workspace.push_back(std::move(fds[1 + signals + i]));
  info.signal_ids.assign(reply.signal_segment_ids().begin(), reply.signal_segment_ids().end());
  info.workspace_ids.assign(reply.workspace_segment_ids().begin(), reply.workspace_segment_ids().end());
  info.signal_bytes = reply.signal_segment_bytes();
  info.workspace_bytes = reply.workspace_segment_bytes();
  info.half_bytes = reply.half_bytes();
  info.bulk_bytes = reply.bulk_bytes();
  info.launch_deadline = Milliseconds(reply.launch_deadline_ms());
  return info;
}

Status GrpcControl::ArmPlan(uint64_t plan_id, const Status& refusal, Milliseconds deadline) {
  v1::ArmPlanRequest request;
  v1::ArmPlanReply reply;
  request.set_plan_id(plan_id);
  if (!refusal.ok()) ToProto(refusal, request.mutable_refusal());
  request.set_deadline_ms(DeadlineMs(deadline));
  return Call(&v1::Tandem::StubInterface::ArmPlan, request, &reply, deadline + kAnswerTime);
}

Status GrpcControl::ReportFailure(const FailureReport& report) {
  v1::ReportFailureRequest request;
  v1::ReportFailureReply reply;
  request.set_group_id(report.group_id);
  request.set_plan_id(report.plan_id);
  request.set_launch(report.launch);
  request.set_awaited_rank(report.awaited_rank);
  ToProto(report.status, request.mutable_status());
  return Call(&v1::Tandem::StubInterface::ReportFailure, request, &reply, kCheckDeadline);
}

Result<PreparedPlan> GrpcControl::Prepare(uint64_t group_id, const std::string& key, const OpRequest& op,
                                          Milliseconds deadline) {
  const auto end = Clock::now() + deadline + kAnswerTime;
  v1::PrepareRequest request;
  v1::PrepareReply reply;
  request.set_group_id(group_id);
  request.set_key(key);
  ToProto(op, request.mutable_request());
  request.set_deadline_ms(DeadlineMs(deadline));
  TANDEM_RETURN_IF_ERROR(Call(&v1::Tandem::StubInterface::Prepare, request, &reply, deadline + kAnswerTime));
  PreparedPlan prepared;
  prepared.info = FromProto(reply.plan());
  if (reply.has_client()) {
    Result<ClientPlacementInfo> placement = TakePlacement(reply.client(), end);
    if (!placement.ok()) {
      // The other ranks need not wait for this one.
      (void)ArmPlan(prepared.info.plan_id, placement.status(), Milliseconds(1));
      (void)ReleasePlan(prepared.info.plan_id);
      return placement.status();
    }
    prepared.client = std::move(*placement);
  }
  return prepared;
}

Status GrpcControl::ReleasePlan(uint64_t plan_id) {
  v1::ReleasePlanRequest request;
  v1::ReleasePlanReply reply;
  request.set_plan_id(plan_id);
  return Call(&v1::Tandem::StubInterface::ReleasePlan, request, &reply, kCallDeadline);
}

Result<ChannelInfo> GrpcControl::OpenChannel(const std::string& gpu_uuid, uint32_t entries) {
  auto end = Clock::now() + kCallDeadline;
  v1::OpenChannelRequest request;
  v1::OpenChannelReply reply;
  request.set_gpu_uuid(gpu_uuid);
  request.set_entries(entries);
  TANDEM_RETURN_IF_ERROR(Call(&v1::Tandem::StubInterface::OpenChannel, request, &reply, kCallDeadline));
  ChannelInfo info;
  info.channel_id = reply.channel_id();
  info.generation = reply.generation();
  Result<std::vector<UniqueFd>> fds = lease_.Take(reply.transfer_id(), end);
  if (fds.ok() && fds->size() != 2)
    fds = Internal("a channel came with " + std::to_string(fds->size()) + " descriptors");
  if (!fds.ok()) {
    (void)CloseChannel(info.channel_id);
    return fds.status();
  }
  info.ring = std::move((*fds)[0]);
  info.words = std::move((*fds)[1]);
  return info;
}

Status GrpcControl::CloseChannel(uint64_t channel_id) {
  v1::CloseChannelRequest request;
  v1::CloseChannelReply reply;
  request.set_channel_id(channel_id);
  return Call(&v1::Tandem::StubInterface::CloseChannel, request, &reply, kCallDeadline);
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
  TANDEM_RETURN_IF_ERROR(Call(&v1::Tandem::StubInterface::Launch, request, &reply, kCallDeadline));
  return reply.launch_id();
}

Status GrpcControl::WaitLaunch(uint64_t launch_id, Milliseconds deadline) {
  v1::WaitLaunchRequest request;
  v1::WaitLaunchReply reply;
  request.set_launch_id(launch_id);
  request.set_deadline_ms(DeadlineMs(deadline));
  request.set_poll(deadline.count() == 0);
  return Call(&v1::Tandem::StubInterface::WaitLaunch, request, &reply, deadline + kAnswerTime);
}

Status GrpcControl::Check() {
  // Id 0 is nobody's: an answer about it is an answer.
  v1::CloseChannelRequest request;
  v1::CloseChannelReply reply;
  Status status = Call(&v1::Tandem::StubInterface::CloseChannel, request, &reply, kCheckDeadline);
  bool gone = status.code() == Code::kUnavailable || status.code() == Code::kUnauthenticated ||
              status.code() == Code::kDeadlineExceeded;
  return gone ? status : Status::Ok();
}

Status GrpcControl::Detach() {
  v1::DetachRequest request;
  v1::DetachReply reply;
  return Call(&v1::Tandem::StubInterface::Detach, request, &reply, kCallDeadline);
}

}  // namespace
}  // namespace tandem::client

extern "C" __attribute__((visibility("default"))) tandem::client::ClientControl* tandem_grpc_create(
    int api_version) {
  if (api_version != tandem::client::kControlApiVersion) return nullptr;
  return new tandem::client::GrpcControl;
}
