#include "daemon/supervisor/engine_keeper.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {

using engine::v1::Command;
using engine::v1::Message;
using std::chrono::milliseconds;

namespace {

// A life of this length shows that nothing is in the way any more.
constexpr std::chrono::seconds kLongLife{1};
constexpr std::chrono::seconds kBlockedLogPeriod{10};
// The socket of an engine that has ended is read to its end: a few messages, unless this machine is badly
// overloaded.
constexpr std::chrono::seconds kLastWordsDeadline{5};
// A ping that did not fit into the socket is tried again this soon while an answer is demanded.
constexpr std::chrono::milliseconds kPingAgain{10};

constexpr char kStopping[] = "the daemon is stopping";
constexpr char kResting[] = "nobody has used the engine for long";

// Reasons of a refusal to start that lie in other processes, or in the MPS server: they pass without us.
bool IsBlocked(const std::string& reason) {
  for (const char* known : {"CUDA_ERROR_MPS_SERVER_NOT_READY", "CUDA_ERROR_MPS_CONNECTION_FAILED",
                            "CUDA_ERROR_MPS_RPC_FAILURE", "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
                            "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "CUDA_ERROR_DEVICE_UNAVAILABLE"}) {
    if (reason == known) return true;
  }
  return false;
}

}  // namespace

EngineKeeper::EngineKeeper(int gpu, const EngineSettings& settings, int order_log, int journal,
                           EngineSlot slot, EngineListener& listener)
    : gpu_(gpu),
      settings_(settings),
      order_log_(order_log),
      journal_(journal),
      slot_(std::move(slot)),
      listener_(listener) {
  wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  status_.state = EngineState::kStarting;
  status_.capabilities = CapabilitiesOfBackend(settings_.backend);
  if (slot_.adopted.has_value()) {
    AdoptedEngine& engine = *slot_.adopted;
    status_.state = EngineState::kReady;
    status_.pid = engine.pid;
    status_.generation = engine.holdings.generation;
    status_.restarts = engine.holdings.generation - 1;
    status_.start = "taken over from an earlier tandemd";
    if (!settings_.mps_directories.empty()) status_.mps = ProbeMps(settings_.mps_directories[0]);
    NoteReady(engine.ready);
    connection_ = std::make_shared<EngineConnection>(
        std::move(engine.socket), wake_.get(),
        "engine of GPU " + std::to_string(gpu_) + " (" + slot_.gpu_uuid + ")");
  }
  thread_ = std::thread([this] { Run(); });
}

EngineKeeper::~EngineKeeper() {
  RequestStop();
  thread_.join();
}

EngineStatus EngineKeeper::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  EngineStatus status = status_;
  if (connection_ != nullptr) {
    status.silent_seconds = std::chrono::duration<double>(Clock::now() - connection_->last_heard()).count();
  }
  return status;
}

Result<std::shared_ptr<EngineConnection>> EngineKeeper::connection() const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (connection_ != nullptr) return connection_;
  if (stopping()) return Unavailable(kStopping);
  std::string text = "the engine of GPU " + std::to_string(gpu_) + " (" + slot_.gpu_uuid + ") is ";
  switch (status_.state) {
    case EngineState::kStarting: text += "starting"; break;
    case EngineState::kCrashLooped: text += "held down after a crash loop"; break;
    case EngineState::kIdle: text += "idle"; break;
    case EngineState::kReady:
    case EngineState::kDown: text += "down"; break;
  }
  if (!status_.blocked.empty()) {
    text += " and cannot start yet: " + status_.blocked;
    return Unavailable(text).WithDetail({"ENGINE_BLOCKED", slot_.gpu_uuid, "", 0, 0});
  }
  if (!status_.lingers.empty()) {
    text += ": " + status_.lingers;
  } else if (!status_.last_exit.empty()) {
    text += " (last end: " + status_.last_exit + ")";
  }
  return Unavailable(text).WithDetail({"ENGINE_DOWN", slot_.gpu_uuid, "", 0, 0});
}

void EngineKeeper::Nudge() {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

void EngineKeeper::Reset() {
  reset_.store(true, std::memory_order_release);
  Nudge();
}

void EngineKeeper::Wake() {
  wanted_.store(true, std::memory_order_release);
  Nudge();
}

void EngineKeeper::DemandAnswer(milliseconds limit) {
  demanded_ms_.store(std::max<int64_t>(limit.count(), 1), std::memory_order_release);
  Nudge();
}

void EngineKeeper::RequestStop() {
  stopping_.store(true, std::memory_order_release);
  Nudge();
}

void EngineKeeper::RequestLeave() {
  leaving_.store(true, std::memory_order_release);
  RequestStop();
}

EngineKeeper::Clock::time_point EngineKeeper::last_turn() const {
  return Clock::time_point(Clock::duration(last_turn_.load(std::memory_order_relaxed)));
}

void EngineKeeper::NoteTurn() {
  last_turn_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

void EngineKeeper::Pause(int pidfd, milliseconds timeout) {
  NoteTurn();
  pollfd waits[2] = {{wake_.get(), POLLIN, 0}, {pidfd, POLLIN, 0}};
  ::poll(waits, pidfd >= 0 ? 2 : 1, static_cast<int>(std::max<milliseconds::rep>(timeout.count(), 0)));
  uint64_t count;
  if ((waits[0].revents & POLLIN) != 0) {
    [[maybe_unused]] ssize_t got = ::read(wake_.get(), &count, sizeof(count));
  }
}

void EngineKeeper::SetState(EngineState state) {
  std::lock_guard<std::mutex> lock(mutex_);
  status_.state = state;
}

void EngineKeeper::Log(SupervisorLogSeverity severity, const std::string& text) const {
  if (settings_.log) settings_.log(severity, "gpu=" + std::to_string(gpu_) + " " + text);
}

void EngineKeeper::Run() {
  RestartPolicy policy(settings_.restart);
  EngineProcess adopted;
  if (slot_.adopted.has_value())
    adopted = EngineProcess::Adopt(slot_.adopted->pid, std::move(slot_.adopted->pidfd));
  // A stop that came before this thread ran has to end, or leave, an adopted engine all the same.
  while (!stopping() || adopted.running()) {
    Life life = RunOnce(std::exchange(adopted, {}));
    if (stopping()) break;
    if (Rest(life)) continue;
    auto delay = PauseAfter(life, policy);
    if (!delay.has_value()) {
      SetState(EngineState::kCrashLooped);
      while (!stopping() && !reset_.exchange(false)) Pause(-1, milliseconds(1000));
      policy = RestartPolicy(settings_.restart);
    } else {
      auto until = Clock::now() + *delay;
      while (!stopping() && Clock::now() < until) {
        Pause(-1, std::chrono::ceil<milliseconds>(until - Clock::now()));
      }
    }
    std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping() && !life.blocked) ++status_.restarts;
  }
  SetState(EngineState::kDown);
}

bool EngineKeeper::Rest(const Life& life) {
  if (!life.rests) return false;
  Log(SupervisorLogSeverity::kInfo, "engine idle: nobody uses it; it starts with the next use");
  while (!stopping() && !wanted_.exchange(false, std::memory_order_acq_rel)) Pause(-1, milliseconds(1000));
  return true;
}

std::optional<milliseconds> EngineKeeper::PauseAfter(const Life& life, RestartPolicy& policy) {
  if (life.blocked) {
    if (mps_choice_ + 1 < settings_.mps_directories.size()) {
      ++mps_choice_;
      Log(SupervisorLogSeverity::kWarning, "engine cannot start (" + life.reason +
                                               "); trying the spare MPS server at " +
                                               settings_.mps_directories[mps_choice_]);
      return milliseconds(0);
    }
    mps_choice_ = 0;
    if (Clock::now() - blocked_logged_ > kBlockedLogPeriod) {
      blocked_logged_ = Clock::now();
      Log(SupervisorLogSeverity::kWarning,
          "engine cannot start yet (" + life.reason +
              "); it is tried again; tandemctl doctor names the processes in the way");
    }
    return policy.OnBlocked();
  }
  mps_choice_ = 0;
  blocked_logged_ = {};
  if (life.length > kLongLife) policy.OnLife();
  if (life.context_lost) {
    // Not counted: it may be the doing of any process on that GPU, and somebody's bug must not take the GPU
    // from all.
    milliseconds delay = life.length > kLongLife ? milliseconds(0) : policy.OnBlocked();
    Log(SupervisorLogSeverity::kError, "engine ended (" + life.reason +
                                           "); under MPS a fault of any process on this GPU, or "
                                           "its kill -9 in a kernel, ends all contexts there");
    return delay;
  }
  auto delay = policy.OnCrash(Clock::now());
  if (delay.has_value()) {
    Log(SupervisorLogSeverity::kWarning,
        "engine ended (" + life.reason + "); next start in " + std::to_string(delay->count()) + " ms");
  } else {
    Log(SupervisorLogSeverity::kError, "engine ended " + std::to_string(policy.crashes()) +
                                           " times in a short time and stays down: " + life.reason);
  }
  return delay;
}

EngineKeeper::Life EngineKeeper::RunOnce(EngineProcess adopted) {
  Life life;
  last_words_ = Status::Ok();
  resting_ = false;
  const bool is_adopted = adopted.running();
  uint64_t generation;
  std::shared_ptr<EngineConnection> connection;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_adopted) {
      connection = connection_;
    } else {
      status_.state = EngineState::kStarting;
      ++status_.generation;
    }
    generation = status_.generation;
  }
  const auto began = Clock::now();
  EngineProcess process = std::move(adopted);
  Status up = is_adopted ? Status::Ok() : StartEngine(process, connection);
  if (up.ok() && !is_adopted) up = AwaitReady(process, *connection, began);
  std::string reason;
  if (up.ok()) {
    // A demand until here was for the engine before; from Ready on it is for this one, watched already or
    // not.
    demanded_ms_.store(0, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      status_.state = EngineState::kReady;
      status_.blocked.clear();
      status_.context_lost = false;
      connection_ = connection;
    }
    life.was_ready = true;
    const auto ready_at = Clock::now();
    const std::string text =
        " pid=" + std::to_string(process.pid()) + " generation=" + std::to_string(generation);
    Log(SupervisorLogSeverity::kInfo,
        is_adopted ? "engine taken over" + text : "engine ready" + text + " after " + status().start);
    if (!is_adopted) listener_.OnEngineUp(gpu_, generation);
    reason = Watch(process, *connection, generation);
    life.rests = resting_;
    life.length = Clock::now() - ready_at;
    if (leaving_.load(std::memory_order_acquire) && connection->state().ok()) {
      connection->EndCalls(kStopping);
      connection->Close("tandemd has left the engine to the next one");
      process.Abandon();
      return life;
    }
  } else {
    reason = up.message();
    life.blocked = IsBlocked(up.detail().reason);
  }
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status_.state = life.rests ? EngineState::kIdle : EngineState::kDown;
    connection_.reset();
  }
  std::string exit = "never started";
  if (connection != nullptr) {
    exit = EndProcess(process, *connection, reason);
    // Its last words: the exit is often seen before what the socket still holds has been read.
    if (!connection->AwaitAllRead(kLastWordsDeadline)) {
      Log(SupervisorLogSeverity::kWarning, "the socket of the ended engine is still being read");
    }
    Dispatch(*connection);
  }
  life.reason = reason.empty() || reason == exit ? exit : reason + "; " + exit;
  if (!last_words_.ok()) life.reason = last_words_.message() + "; " + exit;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status_.pid = 0;
    if (life.rests) {
      status_.own_memory_bytes = 0;
    } else if (life.blocked) {
      status_.blocked = life.reason;
    } else {
      status_.last_exit = life.reason;
      status_.blocked.clear();
      life.context_lost = last_words_.detail().reason == "CONTEXT_LOST" && status_.mps.answers;
      status_.context_lost = life.context_lost;
    }
  }
  if (life.was_ready && !life.rests) listener_.OnEngineDown(gpu_, generation, life.reason);
  return life;
}

std::string EngineKeeper::Watch(EngineProcess& process, EngineConnection& connection, uint64_t generation) {
  auto next_ping = Clock::now() + settings_.ping_interval;
  bool demanded = false;  // (an optional time would have the compiler see it uninitialised)
  Clock::time_point demanded_at{};
  milliseconds demanded_limit{};
  // Whose answer ends the demand: a message may have been on its way before; 0: not sent.
  uint64_t demanded_ping = 0;
  while (true) {
    Dispatch(connection);
    if (stopping()) return "";
    if (Status state = connection.state(); !state.ok()) {
      // The process's exit is more exact than the end of file that comes just before it.
      return state.message() == kEndOfFile ? process.WaitExit(milliseconds(500)).value_or(state.message())
                                           : state.message();
    }
    if (const int64_t limit = demanded_ms_.exchange(0, std::memory_order_acq_rel); limit != 0 && !demanded) {
      demanded = true;
      demanded_at = next_ping = Clock::now();
      demanded_limit = milliseconds(limit);
      demanded_ping = 0;
    }
    if (demanded_ping != 0 && connection.last_answered() >= demanded_ping) demanded = false;
    if (demanded && Clock::now() - demanded_at > demanded_limit) {
      return "another engine waits for it, and it has answered nothing for " +
             std::to_string(demanded_limit.count()) + " ms";
    }
    if (Clock::now() >= next_ping) {
      wanted_.store(false, std::memory_order_release);  // a later Wake is for the engine that rests
      resting_ = listener_.MayRest(gpu_, generation);
      if (resting_) return "";
      if (Clock::now() - connection.last_heard() > settings_.silence_limit) {
        return "it has answered nothing for " + std::to_string(settings_.silence_limit.count()) + " ms";
      }
      Command ping;
      ping.mutable_ping();
      // A full socket is no failure yet: the silence limit decides.
      Status sent = connection.Post(ping, {});
      if (!sent.ok() && sent.code() != Code::kResourceExhausted)
        Log(SupervisorLogSeverity::kWarning, sent.message());
      if (demanded && demanded_ping == 0 && sent.ok()) demanded_ping = ping.id();
      next_ping = Clock::now() + (demanded && demanded_ping == 0 ? kPingAgain : settings_.ping_interval);
    }
    const auto until =
        demanded ? std::min(next_ping, demanded_at + demanded_limit + milliseconds(1)) : next_ping;
    Pause(process.pidfd(), std::chrono::ceil<milliseconds>(until - Clock::now()));
    if (auto exit = process.WaitExit(milliseconds(0))) return *exit;
  }
}

void EngineKeeper::Dispatch(EngineConnection& connection) {
  for (auto& message : connection.TakeInbox()) {
    switch (message->message_case()) {
      case Message::kLaunchDone: listener_.OnLaunchDone(gpu_, message->launch_done()); break;
      case Message::kLaunchFailed: listener_.OnLaunchFailed(gpu_, message->launch_failed()); break;
      case Message::kLate: listener_.OnLate(gpu_, message->late()); break;
      case Message::kPeerSilent: listener_.OnPeerSilent(gpu_, message->peer_silent()); break;
      case Message::kEnded:
        last_words_ = Status(static_cast<Code>(message->ended().code()), message->ended().message(),
                             {message->ended().reason(), "", "", 0, 0});
        break;
      case Message::kAck:
        Log(SupervisorLogSeverity::kWarning, "engine refused a command: " + message->ack().message());
        break;
      default: break;
    }
  }
}

std::string EngineKeeper::EndProcess(EngineProcess& process, EngineConnection& connection,
                                     const std::string& reason) {
  if (!process.running()) {  // reaped by Watch: `reason` is its exit
    connection.Close("the engine has ended: " + reason);
    return reason;
  }
  if ((stopping() || resting_) && connection.state().ok()) {
    connection.EndCalls(resting_ ? kResting : kStopping);
    // Stop lets lanes be released and ends with exit 0; end of file does the same should Stop not be read in
    // time.
    Command stop;
    stop.mutable_stop();
    (void)connection.Post(stop, {});
    if (auto exit = process.WaitExit(settings_.end_grace / 2)) {
      connection.Close("the engine has been stopped");
      return *exit;
    }
  }
  connection.Close(reason.empty() ? "the engine is being stopped" : "the engine has ended: " + reason);
  if (auto exit = process.WaitExit(settings_.end_grace)) return *exit;
  Log(SupervisorLogSeverity::kError,
      "engine pid=" + std::to_string(process.pid()) + " does not end: killing it");
  return KillProcess(process);
}

// A GPU's driver can hold a process for good. That costs its GPU: this thread waits on, and is seen to, for
// the others' sake.
std::string EngineKeeper::KillProcess(EngineProcess& process) {
  const auto killed_at = Clock::now();
  bool logged = false;
  std::string exit = process.Kill([&] {
    NoteTurn();
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - killed_at);
    std::string text = "its process " + std::to_string(process.pid()) + " has not ended " +
                       std::to_string(waited.count()) + " s after SIGKILL";
    if (!logged)
      Log(SupervisorLogSeverity::kError, "engine down: " + text + "; the GPU is out of use until it does");
    logged = true;
    std::lock_guard<std::mutex> lock(mutex_);
    status_.blocked.clear();
    status_.lingers = std::move(text);
  });
  std::lock_guard<std::mutex> lock(mutex_);
  status_.lingers.clear();
  return exit;
}

}  // namespace tandem::daemon
