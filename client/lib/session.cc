#include "client/lib/session.h"

#include <cstdlib>

#include "client/lib/base/deferred_reclaimer.h"
#include "client/lib/base/log_hook.h"
#include "common/exceptions.h"

namespace tandem::client {
namespace {

constexpr auto kServeCaptured = std::chrono::milliseconds(2);
constexpr auto kServeRest = std::chrono::milliseconds(50);
constexpr auto kIdle = std::chrono::milliseconds(500);
constexpr auto kSweepEvery = std::chrono::milliseconds(1000);
// Groups whose events are kept for a join that has not returned, and events of each.
constexpr size_t kMaxEarlyGroups = 64, kMaxEarlyEvents = 64;

std::string RuntimeDir(const ConnectOptions& options) {
  if (!options.runtime_dir.empty()) return options.runtime_dir;
  const char* directory = std::getenv("TANDEM_RUNTIME_DIR");
  return directory != nullptr && *directory != '\0' ? directory : "/run/tandem";
}

}  // namespace

Result<std::shared_ptr<ClientSession>> ClientSession::Attach(std::unique_ptr<ClientControl> control,
                                                             const ConnectOptions& options,
                                                             std::shared_ptr<ClientDevice> device) {
  std::shared_ptr<ClientSession> session(new ClientSession, &ClientSession::End);
  session->device_ = std::move(device);
  session->ready_device_ = session->device_.get();
  session->control_ = std::move(control);
  session->suspend_requests_ = std::make_shared<SuspendRequests>(session->control_.get());
  ClientSession* raw = session.get();
  session->registrations_.BeforeSweep([raw] { raw->ReapAll(); });
  // Shutdown, before the session ends, outlives every callback: the raw pointer stays good.
  ControlCallbacks callbacks{[raw](const ControlEvent& event) { raw->HandleEvent(event); },
                             [raw](const Status& why) { raw->HandleLost(why); },
                             [] { return ThisThreadsCancellation(); }};
  Result<AttachInfo> info = session->control_->Attach(options, RuntimeDir(options), std::move(callbacks));
  if (!info.ok()) return info.status();
  session->info_ = *std::move(info);
  session->registrations_.SetGpus(session->info_.gpus);
  session->fork_guard_.SetFd(session->control_->LeaseFd());
  session->watchdog_ = new std::thread;
  TANDEM_ASSIGN_OR_RETURN(*session->watchdog_,
                          StartThread("the session's watchdog", [raw] { raw->Watch(); }));
  LogLine(ClientLogLevel::kInfo, [&] {
    return "session " + std::to_string(raw->info_.session_id) + " with tandemd " + raw->info_.daemon_version +
           " at " + RuntimeDir(options);
  });
  return session;
}

ClientSession::~ClientSession() {
  if (InChild()) {
    // Threads and locks of the parent's gRPC are not here: nothing of it may be destroyed.
    (void)control_.release();
    // Nor are the channels' words mapped here: a channel is not to be looked at, let alone drained.
    for (auto& [key, channel] : channels_) (void)new std::shared_ptr<StreamChannel>(std::move(channel));
    (void)new std::shared_ptr<FailureReporter>(std::move(reporter_));
    (void)new std::shared_ptr<SuspendRequests>(std::move(suspend_requests_));
    return;
  }
  IgnoreExceptions([this] { Close(Unavailable("the client has been destroyed")); });
  fork_guard_.SetFd(-1);
  {
    std::lock_guard lock(state_mutex_);
    stopping_ = true;
  }
  state_changed_->notify_all();
  if (watchdog_ != nullptr) {
    if (watchdog_->joinable()) watchdog_->join();
    delete watchdog_;
  }
  if (reporter_ != nullptr) reporter_->Stop();
  if (suspend_requests_ != nullptr) IgnoreExceptions([this] { suspend_requests_->Stop(); });
  IgnoreExceptions([this] {
    for (auto& [key, channel] : channels_) DeferredReclaimer::Get().Retire(std::move(channel));
  });
  if (control_ != nullptr) IgnoreExceptions([this] { control_->Shutdown(); });
  delete state_changed_;
}

Status ClientSession::CheckUsable() const {
  TANDEM_RETURN_IF_ERROR(fork_guard_.Check());
  if (is_checkpointed_.load(std::memory_order_acquire)) return CheckpointedError();
  if (!is_closed_.load(std::memory_order_acquire)) return Status::Ok();
  std::lock_guard lock(state_mutex_);
  return lost_;
}

Status ClientSession::CheckLaunchable() const {
  TANDEM_RETURN_IF_ERROR(fork_guard_.Check());
  if (is_checkpointed_.load(std::memory_order_acquire)) return CheckpointedError();
  if (!is_lost_.load(std::memory_order_acquire)) return Status::Ok();
  std::lock_guard lock(state_mutex_);
  return lost_;
}

Result<MemoryUsage> ClientSession::UsedMemory(uint64_t group_id) const try {
  TANDEM_RETURN_IF_ERROR(fork_guard_.Check());
  return memory_->OfGroup(group_id);
}
TANDEM_CATCH_TO_STATUS

Result<MemoryUsage> ClientSession::UsedMemory() const try {
  TANDEM_RETURN_IF_ERROR(fork_guard_.Check());
  MemoryUsage usage = memory_->OfAll();
  usage.imported_bytes = registrations_.ForeignBytes();
  std::shared_lock lock(channels_mutex_);
  usage.host_bytes += channels_.size() * (RingBytes(kRingEntries) + WordsBytes(kRingEntries));
  return usage;
}
TANDEM_CATCH_TO_STATUS

Result<ClientDevice*> ClientSession::device() {
  if (ClientDevice* device = ready_device_.load(std::memory_order_acquire)) return device;
  std::lock_guard lock(device_mutex_);
  if (device_ == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(device_, MakeClientDevice(info_.backend));
  }
  ready_device_.store(device_.get(), std::memory_order_release);
  return device_.get();
}

Result<std::shared_ptr<StreamChannel>> ClientSession::ChannelFor(uint64_t stream,
                                                                 const std::string& gpu_uuid) {
  {
    std::shared_lock lock(channels_mutex_);
    auto it = channels_.find(ChannelView(stream, gpu_uuid));
    if (it != channels_.end() && !it->second->Released()) return it->second;
  }
  ChannelKey key(stream, gpu_uuid);
  std::lock_guard opening(opening_mutex_);
  std::shared_ptr<StreamChannel> ended;
  {
    std::unique_lock lock(channels_mutex_);
    auto it = channels_.find(key);
    if (it != channels_.end()) {
      if (!it->second->Released()) return it->second;
      ended = it->second;
      channels_.erase(it);
      std::erase_if(retired_, [](const auto& weak) { return weak.expired(); });
      retired_.push_back(ended);
    }
  }
  if (ended != nullptr) Forget(ended);
  Result<ChannelInfo> opened = control_->OpenChannel(gpu_uuid, kRingEntries);
  if (!opened.ok() && opened.status().code() == Code::kResourceExhausted) {
    CloseIdleChannels();
    opened = control_->OpenChannel(gpu_uuid, kRingEntries);
  }
  if (!opened.ok()) return opened.status().WithContext("a channel for the stream");
  Result<std::shared_ptr<StreamChannel>> made = UseChannel(*opened, stream, gpu_uuid);
  if (!made.ok()) {
    if (CanCallDaemon()) (void)control_->CloseChannel(opened->channel_id);
    return made.status();
  }
  std::shared_ptr<StreamChannel> channel = *std::move(made);
  std::unique_lock lock(channels_mutex_);
  channels_[key] = channel;
  if (stream >= kFirstForCaptures) has_captures_.store(true, std::memory_order_release);
  return channel;
}

Result<std::shared_ptr<StreamChannel>> ClientSession::UseChannel(const ChannelInfo& opened, uint64_t stream,
                                                                 const std::string& gpu_uuid) {
  TANDEM_ASSIGN_OR_RETURN(
      std::shared_ptr<StreamChannel> channel,
      StreamChannel::Make(opened.channel_id, opened.ring.get(), opened.words.get(), kRingEntries, stream));
  TANDEM_ASSIGN_OR_RETURN(ClientDevice * gpu, device());
  TANDEM_RETURN_IF_ERROR(channel->Pin(*gpu, gpu_uuid));
  TANDEM_RETURN_IF_ERROR(CheckLaunchable());
  return channel;
}

void ClientSession::ReapReplays() {
  if (!has_captures_.load(std::memory_order_acquire)) return;
  std::shared_lock lock(channels_mutex_);
  for (const auto& [key, channel] : channels_) {
    if (key.first >= kFirstForCaptures) channel->Reap();
  }
}

void ClientSession::Forget(const std::shared_ptr<StreamChannel>& channel) {
  channel->Reap();
  if (CanCallDaemon()) (void)control_->CloseChannel(channel->id());
  DeferredReclaimer::Get().Retire(channel);
}

void ClientSession::CloseIdleChannels() {
  std::vector<std::shared_ptr<StreamChannel>> idle;
  {
    std::unique_lock lock(channels_mutex_);
    for (auto it = channels_.begin(); it != channels_.end();) {
      // A launch that is being made holds its own reference.
      if (it->second.use_count() == 1 && it->second->Idle()) {
        idle.push_back(std::move(it->second));
        it = channels_.erase(it);
      } else {
        ++it;
      }
    }
  }
  for (const auto& channel : idle) Forget(channel);
}

void ClientSession::ReapAll() {
  std::shared_lock lock(channels_mutex_);
  for (const auto& [key, channel] : channels_) channel->Reap();
  for (const auto& channel : retired_) {
    if (auto alive = channel.lock()) alive->Reap();
  }
  lock.unlock();
  for (const auto& group : ClientGroups()) group->queue().PollFailures();
}

void ClientSession::AddGroup(const std::shared_ptr<ClientGroupState>& group) {
  std::vector<ControlEvent> early;
  {
    std::lock_guard lock(groups_mutex_);
    groups_[group->id()] = group;
    std::erase_if(groups_, [](const auto& entry) { return entry.second.expired(); });
    if (auto it = early_events_.find(group->id()); it != early_events_.end()) {
      early = std::move(it->second);
      early_events_.erase(it);
    }
  }
  for (const ControlEvent& event : early) {
    if (event.event.kind == ClientEvent::Kind::kEngineRestarted) group->Learn(event.generation);
    if (event.event.kind == ClientEvent::Kind::kGroupBroken) group->Break(event.event.status);
  }
}

void ClientSession::AddClientGroup(const std::shared_ptr<ClientGroup>& group) {
  {
    std::lock_guard lock(client_groups_mutex_);
    std::erase_if(client_groups_, [](const auto& known) { return known.expired(); });
    client_groups_.push_back(group);
    has_client_groups_.store(true, std::memory_order_release);
    if (group->queue().PollInterval().count() > 0) reporter_->Watch(group);
  }
  // The session may have ended since the plan was prepared.
  if (const Status over = CheckLaunchable(); !over.ok()) group->CutOff(over);
}

Result<std::function<void(FailureReport)>> ClientSession::FailureReports() {
  std::lock_guard lock(client_groups_mutex_);
  if (reporter_ == nullptr) {
    auto reporter = std::make_shared<FailureReporter>(control_.get());
    TANDEM_RETURN_IF_ERROR(reporter->Start());
    reporter_ = std::move(reporter);
  }
  return std::function<void(FailureReport)>(
      [reporter = reporter_](FailureReport report) { reporter->Post(std::move(report)); });
}

std::vector<std::shared_ptr<ClientGroup>> ClientSession::ClientGroups() {
  std::vector<std::shared_ptr<ClientGroup>> groups;
  if (!has_client_groups_.load(std::memory_order_acquire)) return groups;
  std::lock_guard lock(client_groups_mutex_);
  for (const auto& known : client_groups_) {
    if (auto group = known.lock()) groups.push_back(std::move(group));
  }
  return groups;
}

void ClientSession::CutOffClientGroups(const Status& why) {
  for (const auto& group : ClientGroups()) group->CutOff(why);
}

void ClientSession::OnEvent(std::function<void(const ClientEvent&)> callback) {
  if (InChild())
    return;  // a callback may have been running at the fork, and its lock is never given back here
  std::shared_ptr<const std::function<void(const ClientEvent&)>> next;
  if (callback) next = std::make_shared<const std::function<void(const ClientEvent&)>>(std::move(callback));
  std::unique_lock lock(callback_mutex_, std::defer_lock);
  if (!InCallback()) lock.lock();
  callback_.swap(next);
  if (lock.owns_lock()) lock.unlock();
  // The groups of the lease before end here, without the lock.
}

void ClientSession::Tell(const ClientEvent& event) {
  LogEvent(event);
  std::lock_guard lock(callback_mutex_);
  caller_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  auto callback = callback_;  // it may put another in its place
  if (callback != nullptr) (*callback)(event);
  callback.reset();
  caller_.store(std::thread::id(), std::memory_order_relaxed);
}

void ClientSession::End(ClientSession* session) {
  if (!session->InCallback()) {
    delete session;
    return;
  }
  DeferredReclaimer::Get().Discard(
      std::shared_ptr<void>(session, [](void* ended) { delete static_cast<ClientSession*>(ended); }));
}

void ClientSession::HandleEvent(const ControlEvent& event) {
  std::shared_ptr<ClientGroupState> group;
  {
    std::lock_guard lock(groups_mutex_);
    auto it = groups_.find(event.event.group_id);
    if (it != groups_.end()) {
      group = it->second.lock();
    } else if (event.event.group_id != 0 && (event.event.kind == ClientEvent::Kind::kEngineRestarted ||
                                             event.event.kind == ClientEvent::Kind::kGroupBroken)) {
      // Most of those that nobody has joined nobody will: the oldest make room.
      if (early_events_.size() >= kMaxEarlyGroups && !early_events_.contains(event.event.group_id)) {
        early_events_.erase(early_events_.begin());
      }
      std::vector<ControlEvent>& early = early_events_[event.event.group_id];
      if (early.size() < kMaxEarlyEvents) early.push_back(event);
    }
  }
  if (group != nullptr) {
    if (event.event.kind == ClientEvent::Kind::kEngineRestarted) group->Learn(event.generation);
    if (event.event.kind == ClientEvent::Kind::kGroupBroken) group->Break(event.event.status);
  }
  suspend_requests_->Handle(event);
  Tell(event.event);
}

void ClientSession::SetDetaching(bool detaching) {
  std::lock_guard lock(state_mutex_);
  detaching_ = detaching;
}

void ClientSession::HandleLost(const Status& why) {
  bool detaching = false;
  {
    std::lock_guard lock(state_mutex_);
    if (is_lost_.load()) return;
    detaching = detaching_;
    lost_ = detaching ? Unavailable(kDetached) : why;
    is_lost_.store(true, std::memory_order_release);
  }
  state_changed_->notify_all();
  suspend_requests_->Wake();
  if (detaching) return;
  Tell({ClientEvent::Kind::kDaemonLost, 0, -1, why});
}

void ClientSession::Close(const Status& why) {
  {
    std::lock_guard lock(state_mutex_);
    if (!is_lost_.load()) {
      lost_ = why;
      is_lost_.store(true, std::memory_order_release);
    }
    is_closed_.store(true, std::memory_order_release);
  }
  state_changed_->notify_all();
  if (suspend_requests_ != nullptr) suspend_requests_->Wake();
  // Nobody serves these words from now on: streams that wait on them are let go, and the memory outlives
  // them.
  ReleaseChannels(why);
}

bool ClientSession::ReleaseChannels(const Status& why) {
  CutOffClientGroups(why);
  bool captured = false;
  std::vector<std::shared_ptr<StreamChannel>> channels;
  {
    // Shared, as all that look at the channels: who reaps one may wait for a launch that waits for this.
    std::shared_lock lock(channels_mutex_);
    for (auto& [key, channel] : channels_) channels.push_back(channel);
    for (const auto& weak : retired_) {
      if (auto alive = weak.lock()) channels.push_back(std::move(alive));
    }
  }
  // All of them first: a launch may hold one channel's lock in a call of the driver that goes on when another
  // is released.
  for (const auto& channel : channels) channel->Release(why);
  for (const auto& channel : channels) {
    channel->TryReap();
    captured |= channel->HasCaptured();
  }
  return captured;
}

void ClientSession::SweepRegistrations() {
  // The engine's import keeps memory alive that the user has freed: let go of it without being asked.
  ClientDevice* device = ready_device_.load(std::memory_order_acquire);
  if (device == nullptr) return;
  if (registrations_.HasForeign()) registrations_.Sweep(*device);
  if (CanCallDaemon()) registrations_.Deregister(*control_);
}

void ClientSession::Watch() {
  while (true) {
    try {
      return WatchUntilStopped();
    } catch (...) {  // without memory for now
      std::unique_lock lock(state_mutex_);
      if (stopping_) return;
      state_changed_->wait_for(lock, kServeRest);
    }
  }
}

void ClientSession::WatchUntilStopped() {
  std::unique_lock lock(state_mutex_);
  while (!stopping_) {
    if (is_lost_.load()) {
      Status why = lost_;
      lock.unlock();
      bool captured = ReleaseChannels(why);
      lock.lock();
      if (!stopping_) state_changed_->wait_for(lock, captured ? kServeCaptured : kServeRest);
      continue;
    }
    // Graphs that were captured on a channel since released (an engine's end) are served here from then on.
    lock.unlock();
    bool captured = false, any_captured = false;
    {
      std::shared_lock channels_lock(channels_mutex_);
      auto serve = [&](StreamChannel& channel) {
        // The engine polls for a captured launch until it hears that the graph is gone, and this session
        // may never call again.
        if (channel.HasDropped()) channel.TryReap();
        any_captured |= channel.HasCaptured();
        if (!channel.Released() || !channel.HasCaptured()) return;
        channel.Release(Aborted("the engine was restarted: capture the graph anew")
                            .WithDetail({.reason = "ENGINE_RESTARTED", .who = {}, .field = {}}));
        channel.TryReap();
        captured |= channel.HasCaptured();
      };
      for (const auto& [key, channel] : channels_) serve(*channel);
      for (const auto& weak : retired_) {
        if (auto channel = weak.lock()) serve(*channel);
      }
    }
    lock.lock();
    if (auto now = std::chrono::steady_clock::now(); now - swept_ >= kSweepEvery) {
      swept_ = now;
      lock.unlock();
      SweepRegistrations();
      lock.lock();
    }
    auto pause = captured ? kServeCaptured : any_captured ? kServeRest : kIdle;
    if (!stopping_ && !is_lost_.load()) state_changed_->wait_for(lock, pause);
  }
}

}  // namespace tandem::client
