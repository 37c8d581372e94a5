#include "daemon/supervisor/supervisor.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <thread>
#include <utility>

#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {

using std::chrono::milliseconds;

namespace {

// How long AwaitReady waits when every engine that is missing cannot start by somebody else's doing.
constexpr std::chrono::seconds kBlockedWaitBudget{3};
// An engine answers from its loop, which no launch holds up. Operators' calls wait for the answer.
constexpr milliseconds kQueueDeadline{1000};

}  // namespace

Supervisor::Supervisor(EngineSettings settings, UniqueFd order_log, std::vector<EngineSlot> slots,
                       UniqueFd journal)
    : settings_(std::move(settings)),
      order_log_(std::move(order_log)),
      journal_(std::move(journal)),
      count_(static_cast<int>(slots.size())),
      slots_(std::move(slots)) {}

Result<std::unique_ptr<Supervisor>> Supervisor::Create(EngineSettings settings, UniqueFd order_log,
                                                       std::vector<EngineSlot> slots, UniqueFd journal) {
  if (::access(settings.program.c_str(), X_OK) != 0) {
    return FailedPrecondition("the engine program " + settings.program + " cannot be executed");
  }
  return std::unique_ptr<Supervisor>(
      new Supervisor(std::move(settings), std::move(order_log), std::move(slots), std::move(journal)));
}

Supervisor::~Supervisor() { Stop(); }

void Supervisor::Start(EngineListener& listener) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (int gpu = 0; gpu < count_; ++gpu) {
    keepers_.push_back(std::make_shared<EngineKeeper>(gpu, settings_, order_log_.get(), journal_.get(),
                                                      std::move(slots_[gpu]), listener));
  }
}

std::vector<std::shared_ptr<EngineKeeper>> Supervisor::Keepers() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return keepers_;
}

Status Supervisor::AwaitReady(milliseconds deadline) const {
  auto until = std::chrono::steady_clock::now() + deadline;
  auto last_hope = std::chrono::steady_clock::now() + kBlockedWaitBudget;
  while (true) {
    int ready = 0, waiting = -1;
    bool all_blocked = true;
    for (int gpu = 0; gpu < count_; ++gpu) {
      EngineStatus status = StatusOf(gpu);
      if (status.state == EngineState::kReady) {
        ++ready;
      } else if (status.state == EngineState::kCrashLooped) {
        return Unavailable("engine " + std::to_string(gpu) + " keeps ending: " + status.last_exit);
      } else {
        waiting = gpu;
        all_blocked &= !status.blocked.empty();
      }
    }
    if (ready == count_) return Status::Ok();
    // An obstacle may stay for hours; the other engines can work meanwhile.
    if (!all_blocked) last_hope = std::chrono::steady_clock::now() + kBlockedWaitBudget;
    if (std::chrono::steady_clock::now() >= last_hope) {
      return Unavailable("engine " + std::to_string(waiting) +
                         " cannot start yet: " + StatusOf(waiting).blocked);
    }
    if (std::chrono::steady_clock::now() >= until) {
      return DeadlineExceeded("engine " + std::to_string(waiting) +
                              " is not ready: " + StatusOf(waiting).last_exit);
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
}

void Supervisor::RequestStop() {
  for (auto& keeper : Keepers()) keeper->RequestStop();
}

void Supervisor::Stop() {
  auto keepers = Keepers();
  for (auto& keeper : keepers) keeper->RequestStop();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    keepers_.clear();
  }
  keepers.clear();  // joins
}

void Supervisor::RequestLeave() {
  for (auto& keeper : Keepers()) keeper->RequestLeave();
}

Status Supervisor::Reset(int gpu) {
  auto keepers = Keepers();
  if (gpu < 0 || gpu >= static_cast<int>(keepers.size())) return NotFound("no engine " + std::to_string(gpu));
  // Before that nobody would take the wish, and a later crash loop would find it.
  if (keepers[gpu]->status().state != EngineState::kCrashLooped) {
    return FailedPrecondition("the engine of GPU " + std::to_string(gpu) + " is not held down");
  }
  keepers[gpu]->Reset();
  return Status::Ok();
}

void Supervisor::Wake(int gpu) {
  auto keepers = Keepers();
  if (gpu >= 0 && gpu < static_cast<int>(keepers.size())) keepers[static_cast<size_t>(gpu)]->Wake();
}

void Supervisor::DemandAnswer(int gpu, milliseconds limit) {
  auto keepers = Keepers();
  if (gpu >= 0 && gpu < static_cast<int>(keepers.size()))
    keepers[static_cast<size_t>(gpu)]->DemandAnswer(limit);
}

milliseconds Supervisor::LongestTurn() const {
  auto now = std::chrono::steady_clock::now();
  auto oldest = now;
  for (auto& keeper : Keepers()) {
    auto turn = keeper->last_turn();
    if (turn.time_since_epoch().count() != 0) oldest = std::min(oldest, turn);
  }
  return std::chrono::duration_cast<milliseconds>(now - oldest);
}

EngineStatus Supervisor::StatusOf(int gpu) const {
  auto keepers = Keepers();
  if (gpu < 0 || gpu >= static_cast<int>(keepers.size())) return {};
  return keepers[gpu]->status();
}

Result<std::shared_ptr<EngineConnection>> Supervisor::ConnectionOf(int gpu) const {
  auto keepers = Keepers();
  if (gpu < 0 || gpu >= count_) return OutOfRange("there is no GPU " + std::to_string(gpu));
  if (keepers.empty()) return Unavailable("the engines have been stopped");
  return keepers[gpu]->connection();
}

Status Supervisor::Call(int gpu, engine::v1::Command command, const std::vector<int>& fds,
                        milliseconds deadline) {
  TANDEM_ASSIGN_OR_RETURN(auto connection, ConnectionOf(gpu));
  return connection->Call(command, fds, deadline);
}

Result<std::string> Supervisor::Ask(int gpu, engine::v1::Command command, milliseconds deadline) {
  TANDEM_ASSIGN_OR_RETURN(auto connection, ConnectionOf(gpu));
  return connection->Ask(command, deadline);
}

Result<UniqueFd> Supervisor::AllocateSegment(int gpu, uint64_t segment_id, uint64_t bytes) {
  TANDEM_ASSIGN_OR_RETURN(auto connection, ConnectionOf(gpu));
  return connection->AllocateSegment(segment_id, bytes, milliseconds(10000));
}

Result<std::string> Supervisor::MakeUniqueId(int gpu) {
  TANDEM_ASSIGN_OR_RETURN(auto connection, ConnectionOf(gpu));
  engine::v1::Command command;
  command.mutable_make_unique_id();
  return connection->Ask(command, milliseconds(30000));
}

Result<std::unique_ptr<engine::v1::Queue>> Supervisor::QueueSnapshot(int gpu) {
  TANDEM_ASSIGN_OR_RETURN(auto connection, ConnectionOf(gpu));
  return connection->QueueSnapshot(kQueueDeadline);
}

Result<std::string> FindEngineProgram(const std::string& configured) {
  if (!configured.empty()) return configured;
  std::error_code error;
  auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return NotFound("/proc/self/exe cannot be read: set engine_path");
  auto folder = self.parent_path();
  auto beside = folder / "tandem-engine";
  auto libexec = folder.parent_path() / "libexec" / "tandem" / "tandem-engine";
  for (const auto& candidate : {beside, libexec}) {
    if (::access(candidate.c_str(), X_OK) == 0) return candidate.string();
  }
  return NotFound("no engine program at " + beside.string() + " or " + libexec.string() +
                  ": set engine_path");
}

}  // namespace tandem::daemon
