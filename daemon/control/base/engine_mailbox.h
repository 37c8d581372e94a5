// File: engine_mailbox.h
//
// `EngineMailbox`: the one way by which the control plane talks to the engine of a GPU. Commands are posted
// under the registry's lock, so that every engine sees the registry's transitions in their order, and are
// sent by the mailbox's own thread, so that no lock is ever held across a call. They go when the lock is
// released, once the journal has what they come from: no engine is ahead of it. A slow or dead engine holds
// up nobody but its own commands.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "common/unique_fd.h"
#include "daemon/control/base/waiter.h"
#include "daemon/supervisor/engines.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Counts commands that somebody waits for together, and keeps their first error. Thread-safe.
class CommandBatch {
 public:
  // One more command to wait for, of the engine of `gpu`.
  void Expect(int gpu);
  // One has ended; `gpu` is named in the error.
  void Done(int gpu, const Status& status);
  // Waits until all have ended: their first error, or DEADLINE_EXCEEDED, which names an engine that has not
  // answered, or CANCELLED.
  Status Wait(const Waiter& waiter);

 private:
  Mutex mutex_;
  std::condition_variable changed_;
  std::multiset<int> pending_ TANDEM_GUARDED_BY(mutex_);  // GPUs, one for each command
  Status first_error_ TANDEM_GUARDED_BY(mutex_);
};

class EngineMailbox {
 public:
  using Completion = std::function<void(const Status&)>;

  EngineMailbox(int gpu, Engines& engines);
  // Waits for the command that is being sent; the others end with UNAVAILABLE.
  ~EngineMailbox();
  EngineMailbox(const EngineMailbox&) = delete;
  EngineMailbox& operator=(const EngineMailbox&) = delete;

  // Commands posted from now on are for the engine of this generation; 0: there is none, and they fail.
  // Commands that were posted for an earlier one and have not been sent end with UNAVAILABLE.
  void SetGeneration(uint64_t generation);

  // Lets go what has been posted. RegistryLock calls it.
  void Send();

  // Posts a command, which goes with the next Send; never blocks. `done` is called from the mailbox's thread
  // without any lock.
  void Post(engine::v1::Command command, std::vector<SharedFd> fds, Completion done);
  // The same for a batch; without one, an error is dropped (the engine has ended, or never knew the thing).
  void Post(engine::v1::Command command, std::vector<SharedFd> fds = {},
            const std::shared_ptr<CommandBatch>& batch = nullptr);
  // Allocates a segment; `take` receives its descriptor before the batch is notified.
  void PostAllocate(uint64_t segment_id, uint64_t bytes, std::function<void(SharedFd)> take,
                    const std::shared_ptr<CommandBatch>& batch);

  int gpu() const { return gpu_; }

 private:
  struct Item {
    uint64_t generation;
    std::function<Status(Engines&)> call;
    Completion done;
  };
  void Push(std::function<Status(Engines&)> call, Completion done);
  void Run();

  const int gpu_;
  Engines& engines_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_ TANDEM_GUARDED_BY(mutex_);
  size_t to_send_ TANDEM_GUARDED_BY(mutex_) = 0;  // the first ones of the items
  uint64_t generation_ TANDEM_GUARDED_BY(mutex_) = 0;
  bool stopping_ TANDEM_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::daemon
