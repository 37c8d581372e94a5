// File: fake_control.h
//
// A gRPC plugin without a daemon: it answers from memory, makes real channels, and hands their engine's ends
// to the test, which plays the engine.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "client/lib/base/control_api.h"
#include "ipc/channel.h"

namespace tandem::client {

// The test's handle to a fake, since the session owns the fake itself. Thread-safe.
struct FakeDaemon {
  std::mutex mutex;
  // Held while a callback runs, as the real plugin's Shutdown waits for callbacks: none runs once the session
  // has ended. Recursive, so that `shut_down_by` shows a Shutdown by the callback's own thread, which the
  // real plugin's could not join.
  std::recursive_mutex telling;
  ControlCallbacks callbacks;
  std::vector<std::unique_ptr<ChannelConsumer>> engines;  // by OpenChannel
  std::vector<uint64_t> released_plans, closed_channels, deregistered;
  std::vector<RegisterInfo> registered;  // without descriptors
  std::string backend = "host", gpu_uuid = "GPU-0";
  std::atomic<uint64_t> group_id{11};  // of whatever group is joined
  // Makes the segments of a rendezvous, of `segment_bytes` each; the pads lie in their second half.
  uint64_t segment_bytes = 8192;
  std::function<Result<UniqueFd>(size_t bytes)> make_segment = [](size_t bytes) {
    return CreateSealedMemfd("fake-segment", bytes);
  };
  // How the steps of suspensions end; null: well.
  std::function<Status(uint64_t group, SuspendStep step)> suspend;
  Milliseconds prepare_deadline{};  // of the last Prepare
  // Gives the plans of several fakes equal numbers; null: each counts its own.
  std::function<uint64_t(const std::string& key)> number_plan;
  // Places plans of a group in the client (group_plans.h); null: engines run them.
  std::function<Result<ClientPlacementInfo>(uint64_t group_id, const OpRequest&)> place;
  std::function<void()> at_detach;  // while the call is under way
  // How launches by gRPC end; null: well.
  std::function<Status(uint64_t launch, Milliseconds deadline)> wait_launch;
  std::atomic<uint64_t> next_id{1};
  std::atomic<bool> gone{false};
  std::atomic<bool> full_once{false};  // the next registration is refused by a quota
  std::atomic<int> destroyed{0};
  std::atomic<std::thread::id> shut_down_by{};
  UniqueFd lease;

  void Tell(const ControlEvent& event) {
    std::lock_guard lock(telling);
    if (const auto on_event = callbacks.on_event) on_event(event);  // a copy: the session's end clears it
  }
  void TellLoss(const std::string& why) {
    std::lock_guard lock(telling);
    if (const auto on_lost = callbacks.on_lost) on_lost(Unavailable(why));
  }

  ChannelConsumer* Engine(size_t index) {
    std::lock_guard lock(mutex);
    return index < engines.size() ? engines[index].get() : nullptr;
  }
};

class FakeControl final : public ClientControl {
 public:
  explicit FakeControl(std::shared_ptr<FakeDaemon> daemon) : daemon_(std::move(daemon)) {}
  ~FakeControl() override { ++daemon_->destroyed; }

  Result<AttachInfo> Attach(const ConnectOptions&, const std::string&, ControlCallbacks callbacks) override {
    std::lock_guard lock(daemon_->telling);
    daemon_->callbacks = std::move(callbacks);
    AttachInfo info;
    info.session_id = 7;
    info.backend = daemon_->backend;
    info.gpus = {{daemon_->gpu_uuid, "emulated", 0, 1 << 30}};
    return info;
  }
  Result<JoinInfo> JoinGroup(const JoinOptions& options, const std::string& gpu_uuid, bool) override {
    JoinInfo info;
    info.group_id = daemon_->group_id;
    info.incarnation = 1;
    info.generation = 1;
    info.gpu_uuids.assign(static_cast<size_t>(options.world_size), gpu_uuid);
    return info;
  }
  Status LeaveGroup(uint64_t, Milliseconds) override { return Answer(); }
  Result<uint64_t> Empty(const TensorSpec&, const std::string&, const std::string&) override {
    return daemon_->next_id++;
  }
  Result<RendezvousInfo> Rendezvous(uint64_t, uint64_t, Milliseconds) override {
    RendezvousInfo info;
    info.rank = 0;
    info.world_size = 2;
    info.segment_bytes = daemon_->segment_bytes;
    info.buffer_bytes = 4096;
    info.pad_offset = info.segment_bytes / 2;
    info.pad_bytes = 4096;
    info.registration_id = daemon_->next_id++;
    for (int i = 0; i < 2; ++i) {
      TANDEM_ASSIGN_OR_RETURN(UniqueFd fd, daemon_->make_segment(info.segment_bytes));
      info.segments.push_back(std::move(fd));
      info.segment_ids.push_back(daemon_->next_id++);
    }
    return info;
  }
  Status Free(uint64_t) override { return Answer(); }
  Result<uint64_t> Register(const RegisterInfo& memory) override {
    TANDEM_RETURN_IF_ERROR(Answer());
    std::lock_guard lock(daemon_->mutex);
    if (daemon_->full_once.exchange(false)) return ResourceExhausted("registrations: the session's limit");
    daemon_->registered.push_back(
        {memory.gpu_uuid, memory.bytes, {}, memory.chunk_bytes, memory.ipc_handle, memory.offset});
    return daemon_->next_id++;
  }
  Status Deregister(uint64_t id) override {
    std::lock_guard lock(daemon_->mutex);
    daemon_->deregistered.push_back(id);
    return Answer();
  }
  Result<PreparedPlan> Prepare(uint64_t group_id, const std::string& key, const OpRequest& request,
                               const PrepareTuning&, Milliseconds deadline) override {
    std::lock_guard lock(daemon_->mutex);
    daemon_->prepare_deadline = deadline;
    PlanInfo info;
    info.plan_id = daemon_->number_plan ? daemon_->number_plan(key)
                                        : plans_.try_emplace(key, 100 + plans_.size()).first->second;
    info.key = key;
    for (int slot = 0; slot < static_cast<int>(request.operands.size()); ++slot) {
      TANDEM_ASSIGN_OR_RETURN(int64_t bytes, BoundBytes(request, slot));
      info.slot_bytes.push_back(static_cast<uint64_t>(bytes));
    }
    PreparedPlan prepared;
    prepared.info = std::move(info);
    if (daemon_->place) {
      TANDEM_ASSIGN_OR_RETURN(prepared.client, daemon_->place(group_id, request));
    }
    return prepared;
  }
  Result<PlanInfo> Preview(uint64_t, const OpRequest& request) override {
    TANDEM_RETURN_IF_ERROR(Answer());
    PlanInfo info;
    info.op = request.op;
    return info;
  }
  Status ArmPlan(uint64_t, const Status& refusal, Milliseconds) override { return refusal; }
  Status ReportFailure(const FailureReport&) override { return Answer(); }
  // Ranks go on behind what this one has finished.
  Result<RenewalInfo> StopForRenewal(uint64_t, uint64_t finished, Milliseconds) override {
    return RenewalInfo{.number = finished, .renewals = 0};
  }
  Result<RenewalInfo> EndRenewal(uint64_t, Milliseconds) override { return RenewalInfo{}; }
  Result<SuspensionInfo> Suspend(uint64_t group_id, SuspendStep step, uint64_t finished,
                                 Milliseconds) override {
    if (daemon_->suspend != nullptr) TANDEM_RETURN_IF_ERROR(daemon_->suspend(group_id, step));
    std::lock_guard lock(daemon_->mutex);
    uint64_t& number = stopped_[group_id];
    if (step == SuspendStep::kStopped) number = finished;
    SuspensionInfo info;
    info.number = number;
    return info;
  }
  Result<uint64_t> ServeSuspension(ServePhase, uint64_t, uint64_t) override { return uint64_t{0}; }
  Status ReleasePlan(uint64_t id) override {
    std::lock_guard lock(daemon_->mutex);
    daemon_->released_plans.push_back(id);
    return Answer();
  }
  Result<ChannelInfo> OpenChannel(const std::string&, uint32_t entries) override {
    TANDEM_RETURN_IF_ERROR(Answer());
    TANDEM_ASSIGN_OR_RETURN(ChannelMemory memory, CreateChannelMemory(entries));
    TANDEM_ASSIGN_OR_RETURN(ChannelConsumer engine,
                            ChannelConsumer::Map(memory.ring.get(), memory.words.get(), entries));
    std::lock_guard lock(daemon_->mutex);
    daemon_->engines.push_back(std::make_unique<ChannelConsumer>(std::move(engine)));
    ChannelInfo info;
    info.channel_id = daemon_->next_id++;
    info.ring = std::move(memory.ring);
    info.words = std::move(memory.words);
    return info;
  }
  Status CloseChannel(uint64_t id) override {
    std::lock_guard lock(daemon_->mutex);
    daemon_->closed_channels.push_back(id);
    return Answer();
  }
  Result<uint64_t> Launch(const DirectLaunch&) override { return daemon_->next_id++; }
  Status WaitLaunch(uint64_t id, Milliseconds deadline) override {
    TANDEM_RETURN_IF_ERROR(Answer());
    return daemon_->wait_launch ? daemon_->wait_launch(id, deadline) : Status::Ok();
  }
  Status Check() override { return Answer(); }
  Status Detach() override {
    if (daemon_->at_detach) daemon_->at_detach();
    return Answer();
  }
  void Shutdown() override {
    daemon_->shut_down_by = std::this_thread::get_id();
    std::lock_guard lock(daemon_->telling);
    daemon_->callbacks = {};
  }
  int LeaseFd() const override { return daemon_->lease.get(); }

 private:
  Status Answer() const {
    return daemon_->gone.load() ? Unavailable("the fake daemon is gone") : Status::Ok();
  }

  const std::shared_ptr<FakeDaemon> daemon_;
  std::map<std::string, uint64_t> plans_;
  std::map<uint64_t, uint64_t> stopped_;  // by group: the launch behind which it sleeps
};

}  // namespace tandem::client
