// File: engine_keeper.h
//
// `EngineKeeper`: keeps one GPU's engine running. Its thread starts the process, waits until it is ready,
// calls the listener, and watches the process and its answers. After an end it starts the next process by the
// restart policy. An engine that the listener lets rest has no process until Wake.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/unique_fd.h"
#include "daemon/supervisor/engine_adoption.h"
#include "daemon/supervisor/engine_connection.h"
#include "daemon/supervisor/engine_process.h"
#include "daemon/supervisor/engines.h"
#include "daemon/supervisor/restart_policy.h"
#include "tandem/status.h"

namespace tandem::daemon {

enum class SupervisorLogSeverity { kInfo, kWarning, kError };

// Settings that all engines of a node have in common.
struct EngineSettings {
  std::string program;     // the tandem-engine binary
  std::string executable;  // by which it is executed, if not by its name: EngineProgram::Executable
  std::string backend = "host";
  uint32_t hardware_queues = 8;
  uint32_t visibility_delay_us = 0;
  uint32_t trace_records = 0;
  bool emulated_fused = false;
  bool speculative_launch = true;
  uint32_t engines_per_gpu = 1;
  // MPS pipe directories that a start tries in turn: the usual one, then spare ones, which serve while the
  // usual one's server accepts nobody. Given to the engine as CUDA_MPS_PIPE_DIRECTORY; empty: the engine
  // inherits tandemd's.
  std::vector<std::string> mps_directories;
  RestartOptions restart;
  std::chrono::milliseconds start_deadline{30000};  // from exec to Ready
  // An engine that has answered nothing, pings included, for so long is ended.
  std::chrono::milliseconds silence_limit{30000};
  std::chrono::milliseconds ping_interval{2000};
  // From end of file (or Stop) to SIGKILL.
  std::chrono::milliseconds end_grace{5000};
  // How long engines go on without tandemd, for the next one, which meets them in `successor_directory`. 0:
  // they end with tandemd.
  std::chrono::milliseconds restart_grace{0};
  std::string successor_directory;
  // One line for the log; called from the keepers' threads.
  std::function<void(SupervisorLogSeverity, const std::string&)> log;
};

// The arguments of one engine's start. The descriptors stay open for restarts.
struct EngineSlot {
  std::string gpu_uuid;
  uint64_t memory_bytes = 0;
  UniqueFd stats_area;
  std::vector<std::string> environment = {};  // "NAME=value", over tandemd's own: CUDA_VISIBLE_DEVICES, say
  std::optional<AdoptedEngine> adopted = {};  // the engine that runs there already
};

// The command that starts an engine with these settings; its generation and seed are still to be set.
engine::v1::Start StartCommand(const EngineSettings& settings, int gpu, const std::string& gpu_uuid,
                               uint64_t memory_bytes);

class EngineKeeper {
 public:
  // `settings`, the descriptors and `listener` outlive this. Starts the thread. An adopted engine is ready at
  // once; the listener gets its end and its reports. `journal`: for the next tandemd; -1: none.
  EngineKeeper(int gpu, const EngineSettings& settings, int order_log, int journal, EngineSlot slot,
               EngineListener& listener);
  // Ends the engine as Stop does.
  ~EngineKeeper();
  EngineKeeper(const EngineKeeper&) = delete;
  EngineKeeper& operator=(const EngineKeeper&) = delete;

  EngineStatus status() const;
  // The connection to the ready engine; UNAVAILABLE names the reason if there is none.
  Result<std::shared_ptr<EngineConnection>> connection() const;
  // Starts a crash-looped engine again, with an empty record.
  void Reset();
  // Starts an idle engine again.
  void Wake();
  // Asks the engine for a sign of life, and ends it if it gives none within `limit`. Returns at once.
  void DemandAnswer(std::chrono::milliseconds limit);
  // Asks the thread to end its engine; returns at once. Calls that wait for the engine's answer then end with
  // UNAVAILABLE, before its process does. The destructor waits.
  void RequestStop();
  // The same, but a ready engine goes on, for the next tandemd; the listener hears nothing of that.
  void RequestLeave();
  // When the thread last showed that it goes on: in its loop, or waiting for a process that does not end.
  std::chrono::steady_clock::time_point last_turn() const;

 private:
  using Clock = std::chrono::steady_clock;

  // How one process came and went.
  struct Life {
    std::string reason;  // why it ended
    bool was_ready = false;
    bool blocked = false;       // it could not start, by somebody else's doing
    bool context_lost = false;  // it lost its context under MPS
    bool rests = false;         // nobody uses it
    Clock::duration length{};   // from Ready
  };

  void Run();
  // `adopted`: this life's process runs already, and is ready.
  Life RunOnce(EngineProcess adopted);
  // After a life: waits for Wake if the engine rests; false if it does not.
  bool Rest(const Life& life);
  // After a life: the pause before the next one, which it logs; nothing if the fuse has blown.
  std::optional<std::chrono::milliseconds> PauseAfter(const Life& life, RestartPolicy& policy);
  Status StartEngine(EngineProcess& process, std::shared_ptr<EngineConnection>& connection);
  // The socket for the next tandemd.
  Result<UniqueFd> ListenForSuccessor() const;
  // Takes what the engine has reported about itself at its start.
  void NoteReady(const engine::v1::Ready& ready);
  // `began`: when the process was started.
  Status AwaitReady(EngineProcess& process, EngineConnection& connection, Clock::time_point began);
  std::string Watch(EngineProcess& process, EngineConnection& connection, uint64_t generation);
  // Hands the inbox to the listener; keeps an engine's last words.
  void Dispatch(EngineConnection& connection);
  std::string EndProcess(EngineProcess& process, EngineConnection& connection, const std::string& reason);
  std::string KillProcess(EngineProcess& process);
  // Has the thread look at what is asked of it.
  void Nudge();
  // Shows that this thread goes on.
  void NoteTurn();
  // Waits for the process, the connection's news, a stop request or `timeout`.
  void Pause(int pidfd, std::chrono::milliseconds timeout);
  void SetState(EngineState state);
  void Log(SupervisorLogSeverity severity, const std::string& text) const;
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }

  const int gpu_;
  const EngineSettings& settings_;
  const int order_log_;
  const int journal_;
  EngineSlot slot_;
  EngineListener& listener_;
  UniqueFd wake_;  // eventfd
  std::atomic<bool> stopping_{false};
  std::atomic<bool> leaving_{false};  // set before stopping_
  std::atomic<bool> reset_{false};
  std::atomic<bool> wanted_{false};      // by a Wake since the listener was last asked
  std::atomic<int64_t> demanded_ms_{0};  // the limit of a DemandAnswer that the thread has not taken
  std::atomic<Clock::rep> last_turn_{0};
  mutable std::mutex mutex_;
  EngineStatus status_;
  std::shared_ptr<EngineConnection> connection_;  // set while the engine is ready
  // Of the keeper's thread alone.
  bool resting_ = false;   // the listener has let the engine of this life go
  size_t mps_choice_ = 0;  // index into mps_directories for the next start
  Status last_words_;      // of the latest process; OK if it had none
  Clock::time_point blocked_logged_{};
  std::thread thread_;
};

}  // namespace tandem::daemon
