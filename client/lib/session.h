// File: session.h
//
// The parts that all handles of one client share: the gRPC plugin, the channels of the client's streams, the
// groups' states, and the watchdog that releases the process's own streams once the daemon is gone.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "client/lib/base/client_device.h"
#include "client/lib/base/control_api.h"
#include "client/lib/base/fork_guard.h"
#include "client/lib/base/launch_state.h"
#include "client/lib/base/registrations.h"
#include "client/lib/base/segment_cache.h"
#include "client/lib/base/stream_channel.h"
#include "client/lib/base/usage_ledger.h"
#include "client/lib/client_launch/client_group.h"
#include "client/lib/client_launch/failure_reporter.h"
#include "client/lib/suspend_requests.h"

namespace tandem::client {

inline constexpr uint32_t kRingEntries = 256;
inline constexpr char kDetached[] = "the client has detached";

class ClientSession : public std::enable_shared_from_this<ClientSession> {
 public:
  // `device`: null for that of the daemon's backend, made on first use.
  static Result<std::shared_ptr<ClientSession>> Attach(std::unique_ptr<ClientControl> control,
                                                       const ConnectOptions& options,
                                                       std::shared_ptr<ClientDevice> device = nullptr);
  ClientSession() = default;
  ~ClientSession();

  ClientControl& control() { return *control_; }
  const AttachInfo& info() const { return info_; }
  SegmentCache& segments() { return segments_; }
  Registrations& registrations() { return registrations_; }
  UsageLedger& memory() { return *memory_; }
  // Bytes held for a group, and for the whole session. FORKED in a forked child.
  Result<MemoryUsage> UsedMemory(uint64_t group_id) const;
  Result<MemoryUsage> UsedMemory() const;
  // This process's side of the daemon's backend; loads CUDA when first asked for. Lives as long as the
  // session.
  Result<ClientDevice*> device();

  // Every call of a handle checks this first: not in a forked child, not detached.
  Status CheckUsable() const;
  // CheckUsable, and the daemon has not gone: for launches, which no daemon would refuse.
  Status CheckLaunchable() const;
  bool InChild() const { return fork_guard_.InChild(); }
  // True if a destructor may still talk to the daemon.
  bool CanCallDaemon() const { return CheckLaunchable().ok(); }

  // The channel of a stream, by LaunchStream::Id(), to the engine of `gpu_uuid`; opened if there is none or
  // if the last was released.
  Result<std::shared_ptr<StreamChannel>> ChannelFor(uint64_t stream, const std::string& gpu_uuid);
  // The channel that has captured launches' slots: number `index` of them, since each has so many slots only.
  Result<std::shared_ptr<StreamChannel>> ChannelForCaptures(uint64_t index, const std::string& gpu_uuid) {
    return ChannelFor(kFirstForCaptures + index, gpu_uuid);
  }
  // Hands on the outcomes of captured launches, if there are any.
  void ReapReplays();
  // Hands on the outcomes of all channels.
  void ReapAll();

  // Operators' requests. Lives as long as the session.
  SuspendRequests& suspend_requests() { return *suspend_requests_; }
  void AddGroup(const std::shared_ptr<ClientGroupState>& group);
  // Ends the launches of `group` once the session is over, when nobody else writes verdicts.
  void AddClientGroup(const std::shared_ptr<ClientGroup>& group);
  // Where groups report failures to; any thread, also after the session's end.
  // RESOURCE_EXHAUSTED: the thread that reports cannot be started.
  Result<std::function<void(FailureReport)>> FailureReports();
  // Replaces the callback. The old one will not run again, and has returned unless this is called in it.
  void OnEvent(std::function<void(const ClientEvent&)> callback);

  // Leaves the session to a restored process, which may be this one: the groups sleep, no connection and no channel is left,
  // and calls fail with reason CHECKPOINTED. Idempotent. After an error the session goes on.
  Status BeginCheckpoint(Milliseconds deadline);
  // Takes it back, and maps again what this process shares with the daemon. Idempotent, also after an error.
  Status EndCheckpoint(Milliseconds deadline);

  // The user ends the session: that the daemon lets it go from here on is no news. False takes it back.
  void SetDetaching(bool detaching);
  // Closes the session from this side; later calls say `why`. Idempotent.
  void Close(const Status& why);

 private:
  static constexpr uint64_t kFirstForCaptures = uint64_t{1} << 63;
  // LaunchStream::Id() and the GPU. Not the stream's address: a later stream may get that of one whose work
  // is pending.
  using ChannelKey = std::pair<uint64_t, std::string>;
  using ChannelView = std::pair<uint64_t, std::string_view>;  // to look one up without making a string
  struct ChannelKeyHash {
    using is_transparent = void;
    size_t operator()(const ChannelView& key) const {
      return std::hash<uint64_t>()(key.first) * 31 + std::hash<std::string_view>()(key.second);
    }
    size_t operator()(const ChannelKey& key) const { return (*this)(ChannelView(key)); }
  };
  struct ChannelKeyEqual {
    using is_transparent = void;
    bool operator()(const ChannelView& a, const ChannelView& b) const { return a == b; }
  };

  // Ends a session that nobody holds any more: on another thread where a callback has dropped it, for the
  // session's end joins the callback's thread.
  static void End(ClientSession* session);
  bool InCallback() const { return caller_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  void Tell(const ClientEvent& event);
  void HandleEvent(const ControlEvent& event);
  void HandleLost(const Status& why);
  static Status CheckpointedError();
  // Maps the user's registered memory and the groups' verdict pages, of which a restored process has copies.
  Status ShareMemoryAgain();
  // The watchdog's thread.
  void Watch();
  void WatchUntilStopped();
  // The library's end of a channel that the daemon has just opened. It stays open there on an error.
  Result<std::shared_ptr<StreamChannel>> UseChannel(const ChannelInfo& opened, uint64_t stream,
                                                    const std::string& gpu_uuid);
  // Drops registrations whose memory is gone.
  void SweepRegistrations();
  // Gives channels back that carry nothing, when the daemon's quota is reached.
  void CloseIdleChannels();
  // Ends every channel's waits; true if some must be served again.
  bool ReleaseChannels(const Status& why);
  void Forget(const std::shared_ptr<StreamChannel>& channel);
  std::vector<std::shared_ptr<ClientGroup>> ClientGroups();
  void CutOffClientGroups(const Status& why);

  std::unique_ptr<ClientControl> control_;
  AttachInfo info_;
  ForkGuard fork_guard_;
  std::mutex device_mutex_;
  std::shared_ptr<ClientDevice> device_;
  std::atomic<ClientDevice*> ready_device_{nullptr};
  SegmentCache segments_;
  Registrations registrations_;
  const std::shared_ptr<UsageLedger> memory_ = std::make_shared<UsageLedger>();

  mutable std::shared_mutex channels_mutex_;
  std::unordered_map<ChannelKey, std::shared_ptr<StreamChannel>, ChannelKeyHash, ChannelKeyEqual> channels_;
  std::atomic<bool> has_captures_{false};
  std::vector<std::weak_ptr<StreamChannel>> retired_;  // released ones whose graphs may still be replayed
  std::mutex opening_mutex_;                           // one OpenChannel at a time

  std::mutex groups_mutex_;
  std::map<uint64_t, std::weak_ptr<ClientGroupState>> groups_;
  std::map<uint64_t, std::vector<ControlEvent>> early_events_;  // of groups whose join has not returned yet

  std::mutex client_groups_mutex_;
  std::vector<std::weak_ptr<ClientGroup>> client_groups_;
  std::atomic<bool> has_client_groups_{false};
  std::shared_ptr<SuspendRequests> suspend_requests_;
  std::shared_ptr<FailureReporter> reporter_;  // null before the first client group

  std::mutex callback_mutex_;              // held while the callback runs
  std::atomic<std::thread::id> caller_{};  // who runs it
  std::shared_ptr<const std::function<void(const ClientEvent&)>> callback_;

  mutable std::mutex state_mutex_;
  // Leaked in a forked child: destroying a condition variable waits for its waiters, which do not exist
  // there.
  std::condition_variable* const state_changed_ = new std::condition_variable;
  Status lost_;
  std::atomic<bool> is_lost_{false};
  std::atomic<bool> is_closed_{false};
  std::mutex checkpoint_mutex_;  // one call of BeginCheckpoint or EndCheckpoint at a time
  std::atomic<bool> is_checkpointed_{false};
  bool detaching_ = false;
  bool stopping_ = false;
  std::chrono::steady_clock::time_point swept_;  // the watchdog's
  std::thread* watchdog_ = nullptr;              // leaked in a forked child, where it does not run
};

}  // namespace tandem::client
