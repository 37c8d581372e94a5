// File: supervisor.h
//
// `Supervisor`: the engines of a node, one process per GPU. Starts and restarts them, and carries commands to
// them.
//
// Example:
//   TANDEM_ASSIGN_OR_RETURN(auto supervisor, Supervisor::Create(settings, std::move(order_log),
//   std::move(slots))); Control control(options, *supervisor); supervisor->Start(control); …
//   supervisor->Stop();
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "daemon/supervisor/engine_keeper.h"
#include "daemon/supervisor/engines.h"
#include "tandem/status.h"

namespace tandem::daemon {

class Supervisor final : public Engines {
 public:
  // FAILED_PRECONDITION if the engine program is no executable file. Nothing is started yet. `journal`:
  // tandemd's, which engines keep for the next tandemd.
  static Result<std::unique_ptr<Supervisor>> Create(EngineSettings settings, UniqueFd order_log,
                                                    std::vector<EngineSlot> slots,
                                                    UniqueFd journal = UniqueFd());
  ~Supervisor() override;

  // Starts all engines; `listener` outlives Stop. Call once.
  void Start(EngineListener& listener);
  // Waits until no engine is starting: OK if all are ready; otherwise the first one that is not, or the
  // deadline. Not long for engines that cannot start by somebody else's doing.
  Status AwaitReady(std::chrono::milliseconds deadline) const;
  // Asks for what Stop does, and returns: calls to engines end with UNAVAILABLE from then on. Any thread.
  void RequestStop();
  // Ends all engines, side by side, and waits. Idempotent.
  void Stop();
  // RequestStop, but ready engines go on, for the next tandemd. The listener hears nothing of their ends.
  void RequestLeave();
  // The longest time since one of the keepers showed that it goes on.
  std::chrono::milliseconds LongestTurn() const;

  int count() const override { return count_; }
  EngineStatus StatusOf(int gpu) const override;
  Status Call(int gpu, engine::v1::Command command, const std::vector<int>& fds,
              std::chrono::milliseconds deadline) override;
  Result<std::string> Ask(int gpu, engine::v1::Command command, std::chrono::milliseconds deadline) override;
  Result<UniqueFd> AllocateSegment(int gpu, uint64_t segment_id, uint64_t bytes) override;
  Result<std::string> MakeUniqueId(int gpu) override;
  Status Reset(int gpu) override;
  void Wake(int gpu) override;
  void DemandAnswer(int gpu, std::chrono::milliseconds limit) override;
  Result<std::unique_ptr<engine::v1::Queue>> QueueSnapshot(int gpu) override;

 private:
  Supervisor(EngineSettings settings, UniqueFd order_log, std::vector<EngineSlot> slots, UniqueFd journal);
  Result<std::shared_ptr<EngineConnection>> ConnectionOf(int gpu) const;
  std::vector<std::shared_ptr<EngineKeeper>> Keepers() const;

  const EngineSettings settings_;
  const UniqueFd order_log_, journal_;
  const int count_;
  std::vector<EngineSlot> slots_;  // until Start
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<EngineKeeper>> keepers_;
};

// Where tandem-engine is: `configured` if not empty, else beside this program, else in ../libexec/tandem of
// it. NOT_FOUND lists the places.
Result<std::string> FindEngineProgram(const std::string& configured);

}  // namespace tandem::daemon
