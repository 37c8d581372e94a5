#include "tests/inprocess/node_control.h"

#include <utility>

#include "daemon/planner/planner.h"
#include "daemon/topology/topology.h"

namespace tandem::inprocess {
namespace {

constexpr uint64_t kGroupId = 100;
constexpr uint64_t kGeneration = 1;
constexpr uint64_t kSessionId = 1;  // owner of EngineNode's registrations
constexpr uint64_t kLaunchDeadlineMs = 300'000;

std::vector<int> AllGpus(int world_size) {
  std::vector<int> gpus;
  for (int gpu = 0; gpu < world_size; ++gpu) gpus.push_back(gpu);
  return gpus;
}

std::string Uuid(int gpu) { return "GPU-" + std::to_string(gpu); }

}  // namespace

// One client's half.
class NodeControl final : public client::ClientControl {
 public:
  NodeControl(Node* node, int rank) : node_(node), rank_(rank) {}
  ~NodeControl() override { node_->OnControlGone(); }

  Result<client::AttachInfo> Attach(const ConnectOptions&, const std::string&,
                                    client::ControlCallbacks callbacks) override {
    node_->SetCallbacks(rank_, std::move(callbacks));
    client::AttachInfo info;
    info.session_id = kSessionId;
    info.backend = "host";
    for (int gpu = 0; gpu < node_->world_size(); ++gpu)
      info.gpus.push_back({Uuid(gpu), "emulated", gpu, 1 << 30});
    return info;
  }
  Result<client::JoinInfo> JoinGroup(const JoinOptions&, const std::string&, bool) override {
    client::JoinInfo info;
    info.group_id = kGroupId;
    info.incarnation = 1;
    info.generation = kGeneration;
    for (int gpu = 0; gpu < node_->world_size(); ++gpu) info.gpu_uuids.push_back(Uuid(gpu));
    return info;
  }
  Status LeaveGroup(uint64_t, Milliseconds) override { return node_->LeaveGroup(rank_); }
  Result<uint64_t> Empty(const TensorSpec&, const std::string&, const std::string&) override {
    return uint64_t{1};
  }
  Result<client::RendezvousInfo> Rendezvous(uint64_t, uint64_t, Milliseconds) override {
    return node_->Rendezvous(rank_);
  }
  Status Free(uint64_t) override { return Status::Ok(); }
  Result<uint64_t> Register(const client::RegisterInfo&) override {
    return Unimplemented("memory of the client's own");
  }
  Status Deregister(uint64_t) override { return Status::Ok(); }
  Result<client::PreparedPlan> Prepare(uint64_t, const std::string& key, const OpRequest& request,
                                       const client::PrepareTuning&, Milliseconds deadline) override {
    client::PreparedPlan prepared;
    TANDEM_ASSIGN_OR_RETURN(prepared.info, node_->Prepare(rank_, key, request, deadline));
    return prepared;
  }
  Result<PlanInfo> Preview(uint64_t, const OpRequest&) override { return Unimplemented("previews of plans"); }
  Status ArmPlan(uint64_t, const Status&, Milliseconds) override {
    return Unimplemented("plans that are placed in the client");
  }
  Status ReportFailure(const client::FailureReport&) override {
    return Unimplemented("plans that are placed in the client");
  }
  Result<client::RenewalInfo> StopForRenewal(uint64_t, uint64_t, Milliseconds) override {
    return Unimplemented("plans that are placed in the client");
  }
  Result<client::RenewalInfo> EndRenewal(uint64_t, Milliseconds) override {
    return Unimplemented("plans that are placed in the client");
  }
  Result<client::SuspensionInfo> Suspend(uint64_t, client::SuspendStep, uint64_t, Milliseconds) override {
    return Unimplemented("groups that sleep");
  }
  Result<uint64_t> ServeSuspension(client::ServePhase, uint64_t, uint64_t) override {
    return Unimplemented("operators' requests");
  }
  Status ReleasePlan(uint64_t id) override { return node_->ReleasePlan(id); }
  Result<client::ChannelInfo> OpenChannel(const std::string&, uint32_t entries) override {
    return node_->OpenChannel(rank_, entries);
  }
  Status CloseChannel(uint64_t id) override { return node_->CloseChannel(rank_, id); }
  Result<uint64_t> Launch(const client::DirectLaunch&) override {
    return Unimplemented("launches without a stream");
  }
  Status WaitLaunch(uint64_t, Milliseconds) override { return Unimplemented("launches without a stream"); }
  Status Check() override { return Status::Ok(); }
  Status Detach() override { return Status::Ok(); }
  void Shutdown() override { node_->SetCallbacks(rank_, {}); }
  int LeaseFd() const override { return -1; }

 private:
  Node* const node_;
  const int rank_;
};

Node::Node(int world_size, int hardware_queues)
    : world_size_(world_size),
      engines_(world_size, hardware_queues),
      group_(engines_.AddGroup(kGroupId, AllGpus(world_size), kLaunchDeadlineMs, kGeneration)) {}

Node::~Node() {
  std::unique_lock lock(callbacks_mutex_);
  control_gone_.wait(lock, [this] { return controls_ == 0; });
}

std::unique_ptr<client::ClientControl> Node::MakeControl(int rank) {
  std::lock_guard lock(callbacks_mutex_);
  ++controls_;
  return std::make_unique<NodeControl>(this, rank);
}

void Node::OnControlGone() {
  std::lock_guard lock(callbacks_mutex_);
  --controls_;
  control_gone_.notify_all();  // under the lock: the node may be gone right behind it
}

void Node::SetCallbacks(int rank, client::ControlCallbacks callbacks) {
  std::lock_guard lock(callbacks_mutex_);
  callbacks_[rank] = std::move(callbacks);
}

void Node::Break(const std::string& message, uint32_t who_rank) {
  {
    std::lock_guard lock(mutex_);
    for (int gpu = 0; gpu < world_size_; ++gpu) {
      (void)engines_.Break(gpu, group_, Code::kUnavailable, message, who_rank);
    }
  }
  client::ControlEvent event;
  event.event.kind = ClientEvent::Kind::kGroupBroken;
  event.event.group_id = kGroupId;
  event.event.status = Unavailable(message);
  std::lock_guard lock(callbacks_mutex_);
  for (auto& [rank, callbacks] : callbacks_) {
    if (callbacks.on_event) callbacks.on_event(event);
  }
}

bool Node::AwaitQueued(int gpu, int items) {
  std::lock_guard lock(mutex_);
  return engines_.AwaitQueued(gpu, items);
}

Result<PlanInfo> Node::Prepare(int rank, const std::string& key, const OpRequest& request,
                               Milliseconds deadline) {
  std::unique_lock lock(mutex_);
  PrepareCall& prepare = prepare_calls_[key];
  prepare.requests.resize(static_cast<size_t>(world_size_));
  prepare.requests[static_cast<size_t>(rank)] = request;
  if (++prepare.taken == prepare.requests.size()) {
    Result<PlanInfo> plan = MakePlan(key, prepare.requests);
    prepare.status = plan.ok() ? Status::Ok() : plan.status();
    if (plan.ok()) prepare.info = *std::move(plan);
    prepare.planned = true;
    met_.notify_all();
  }
  if (!met_.wait_for(lock, deadline, [&] { return prepare.planned; })) {
    return DeadlineExceeded("not all ranks have asked for plan '" + key + "'");
  }
  TANDEM_RETURN_IF_ERROR(prepare.status);
  return prepare.info;
}

Result<PlanInfo> Node::MakePlan(const std::string& key, const std::vector<OpRequest>& requests) {
  plan::GroupContext context;
  context.topology = EmulatedTopology(world_size_);
  TANDEM_ASSIGN_OR_RETURN(plan::OperationPlan planned, plan::MakePlan(requests, context));
  if (planned.workspace_bytes > engine::EngineNode::kWorkspaceBytes || planned.bulk_bytes != 0) {
    return ResourceExhausted("plan '" + key + "' needs more workspace than the test's node has");
  }
  PlanInfo info;
  info.key = key;
  info.op = planned.op;
  info.algorithm = planned.algorithm;
  std::vector<engine::v1::PlanSlot> slots;
  for (int i = 0; i < static_cast<int>(requests[0].operands.size()); ++i) {
    const Operand& operand = requests[0].operands[static_cast<size_t>(i)];
    TANDEM_ASSIGN_OR_RETURN(int64_t span, BoundBytes(requests[0], i));
    info.slot_bytes.push_back(static_cast<uint64_t>(span));
    engine::v1::PlanSlot& slot = slots.emplace_back();
    slot.set_span_bytes(static_cast<uint64_t>(span));
    slot.set_alignment(static_cast<uint32_t>(DTypeBytes(operand.spec.dtype)));
    slot.set_symmetric(operand.symmetric);
    slot.set_alias_of(operand.alias_of);
  }
  info.plan_id = engines_.AddPlan(&group_, planned.programs, slots);
  return info;
}

Status Node::ReleasePlan(uint64_t plan_id) {
  std::lock_guard lock(mutex_);
  for (auto& [key, prepare] : prepare_calls_) {
    if (prepare.info.plan_id != plan_id || ++prepare.released < world_size_) continue;
    engine::v1::Command command;
    command.mutable_remove_plan()->set_plan_id(plan_id);
    for (int gpu = 0; gpu < world_size_; ++gpu) TANDEM_RETURN_IF_ERROR(engines_.Call(gpu, command));
  }
  return Status::Ok();
}

Status Node::LeaveGroup(int rank) {
  std::lock_guard lock(mutex_);
  engine::v1::Command command;
  command.mutable_leave_group()->set_group_id(kGroupId);
  command.mutable_leave_group()->set_rank(rank);
  for (int gpu = 0; gpu < world_size_; ++gpu) TANDEM_RETURN_IF_ERROR(engines_.Call(gpu, command));
  return Status::Ok();
}

Result<client::RendezvousInfo> Node::Rendezvous(int rank) {
  std::lock_guard lock(mutex_);
  client::RendezvousInfo info;
  info.rank = rank;
  info.world_size = world_size_;
  info.segment_bytes = engine::EngineNode::kSegmentBytes;
  info.buffer_offset = engine::EngineNode::kDataOffset;
  info.buffer_bytes = engine::EngineNode::kDataBytes;
  info.pad_offset = engine::EngineNode::kPadOffset;
  info.pad_bytes = engine::EngineNode::kPadBytes;
  info.registration_id = group_.registration;
  for (int peer = 0; peer < world_size_; ++peer) {
    info.segments.push_back(engines_.SegmentFd(group_, peer));
    info.segment_ids.push_back(static_cast<uint64_t>(peer) + 1);
  }
  return info;
}

Result<client::ChannelInfo> Node::OpenChannel(int gpu, uint32_t entries) {
  std::lock_guard lock(mutex_);
  TANDEM_ASSIGN_OR_RETURN(ChannelMemory memory, CreateChannelMemory(entries));
  client::ChannelInfo info;
  info.channel_id = next_channel_++;
  info.generation = kGeneration;
  engine::v1::Command command;
  command.mutable_open_channel()->set_channel_id(info.channel_id);
  command.mutable_open_channel()->set_session_id(kSessionId);
  command.mutable_open_channel()->set_entries(entries);
  TANDEM_RETURN_IF_ERROR(engines_.Call(gpu, command, {memory.ring.get(), memory.words.get()}));
  info.ring = std::move(memory.ring);
  info.words = std::move(memory.words);
  return info;
}

Status Node::CloseChannel(int gpu, uint64_t id) {
  std::lock_guard lock(mutex_);
  engine::v1::Command command;
  command.mutable_close_channel()->set_channel_id(id);
  return engines_.Call(gpu, command);
}

}  // namespace tandem::inprocess
