// File: engine.h
//
// An engine: executes rank programs on one GPU for tandemd and the clients. The main loop looks, in turn, at
// tandemd's commands, the lanes' completion word, the channels and the order log. It polls while anything is
// under way, and sleeps on futexes when nothing is.
//
// `tandem-engine` is a process around one Engine; tests run several in threads of one process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/unique_fd.h"
#include "engine/channel_server.h"
#include "engine/engine_link.h"
#include "engine/holdings.h"
#include "engine/launch/launch_queue.h"
#include "engine/memory/deferred_release.h"
#include "engine/memory/memory_table.h"
#include "kernels/backend.h"
#include "tandem/status.h"

namespace tandem::engine {

// The parameters of an engine's backend: the fields of v1::Start.
struct BackendRequest {
  std::string name;
  int gpu = 0;
  std::string gpu_uuid;
  int hardware_queues = 8;
  uint64_t memory_bytes = 0;
  int visibility_delay_us = 0;
  uint64_t seed = 0;
  bool emulated_fused = false;
  int engines_per_gpu = 1;
  // Called by the factory's thread when a phase of the backend's start has ended; never empty.
  std::function<void(std::string_view phase)> ended_phase = [](std::string_view) {};
};
using BackendFactory = std::function<Result<std::unique_ptr<Backend>>(const BackendRequest&)>;

class Engine : private LaunchListener {
 public:
  // `socket`: the engine's end of the socketpair. The backend is made by `factory` when Start comes.
  // `turn_limits`: other than the defaults for tests, whose clients take turns of other lengths than those of
  // GPUs.
  Engine(UniqueFd socket, BackendFactory factory, const TurnLimits& turn_limits = {});
  ~Engine() override;
  // The build that a tandemd must have which takes the engine over. Before Run.
  void SetBuild(std::string build) { holdings_.SetBuild(std::move(build)); }

  // Runs until Stop, the end of the socket, or a failure that only a new process mends (the order log lapped
  // it, the GPU context is lost). Before it returns, lanes and waiting streams are released, and a failure is
  // reported to tandemd. OK after Stop or the end of the socket; reason kContextLost when the GPU does
  // nothing more for this process.
  Status Run();

 private:
  // True once the command is done; an error is its answer.
  using Finished = std::function<Result<bool>()>;
  struct PendingAck {
    uint64_t command_id;
    Finished finished;
    std::string payload;
    uint64_t of_tandemd;  // EngineLink::successions() when the command came
  };

  // Commands (engine_exchange.cc, engine_commands.cc).
  bool ExecuteCommands();
  void Execute(ReceivedCommand received);
  // Describes the backend for tandemd (engine_reports.cc).
  void FillReady(v1::Ready* ready) const;
  // From now on the engine outlives tandemd, and holds what the next one needs.
  void HoldFrom(const v1::Start& start, const std::vector<UniqueFd>& fds, const v1::Ready& ready);
  // Hands everything to the next tandemd, if one has come. Between two commands.
  bool MeetSuccessor();
  Status Dispatch(const v1::Command& command, std::vector<UniqueFd> fds, bool* deferred);
  Status Start(const v1::Command& command, const std::vector<UniqueFd>& fds);
  Status AddGroup(const v1::Command& command, const std::vector<UniqueFd>& fds);
  Status SetWorkspace(const v1::Command& command);
  Status AddPlan(const v1::Command& command, bool* deferred);
  Status MakeGroupCommunicator(EngineGroup* group);
  Status AddRegistration(const v1::Command& command, std::vector<UniqueFd> fds);
  Status AllocateSegment(const v1::Command& command);
  Status Launch(const v1::Command& command);
  Status BreakGroup(const v1::BreakGroup& from);
  // These answer later, and set *deferred, while launches are under way.
  Status LeaveGroup(const v1::Command& command, bool* deferred);
  Status RemoveGroup(const v1::Command& command, bool* deferred);
  Status RemovePlan(const v1::Command& command, bool* deferred);
  Status FailLaunch(const v1::FailLaunch& from);
  Status RenewGroup(const v1::Command& command, bool* deferred);
  void SendQueueSnapshot();
  void SendAck(uint64_t id, const Status& status, const std::string& payload = {});
  void Defer(uint64_t id, Finished finished, std::string payload = "") {
    pending_acks_.push_back({id, std::move(finished), std::move(payload), link_.successions()});
  }
  bool FinishPendingAcks();

  // LaunchListener.
  void OnLaunchDone(uint64_t launch_id, const Status& status) override;
  void OnLaunchFailed(const InstalledPlan& plan, uint64_t count, const Status& status) override;
  void OnGroupLost(const InstalledPlan& plan, uint64_t count, const Status& status) override;
  void OnGroupStalled(const EngineGroup& group, const Status& status) override;
  void OnLate(const InstalledPlan& plan, const engine::Launch& launch, const std::vector<int>& missing,
              double seconds) override;
  void OnPeerSilent(const EngineGroup& group, int rank) override;

  // The loop.
  bool Step();
  bool MustPoll() const;
  // Asks the backend for its health when it is time; a failure ends the engine.
  void CheckHealth(uint64_t now_ns);
  void Sleep();
  void ShutDown();

  EngineLink link_;
  Holdings holdings_;
  BackendFactory factory_;
  TurnLimits turn_limits_;
  int gpu_ = 0;
  std::unique_ptr<Backend> backend_;
  std::shared_ptr<DeferredRelease> dead_ = std::make_shared<DeferredRelease>();
  std::unique_ptr<MemoryTable> memory_;
  std::unique_ptr<LaunchQueue> queue_;
  std::unique_ptr<ChannelServer> channels_;
  std::vector<PendingAck> pending_acks_;
  bool stopping_ = false;
  Status health_;  // not OK: the device does nothing more for this process
  uint64_t last_health_ns_ = 0;
  std::vector<FutexWaiter> waiters_;  // scratch
};

}  // namespace tandem::engine
