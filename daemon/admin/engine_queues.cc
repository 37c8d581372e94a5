#include "daemon/admin/engine_queues.h"

#include <thread>
#include <utility>

#include "daemon/observe/health.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::daemon {

std::vector<EngineQueue> AskQueues(Engines& engines) {
  std::vector<EngineQueue> queues(static_cast<size_t>(engines.count()));
  std::vector<std::thread> askers;
  for (size_t gpu = 0; gpu < queues.size(); ++gpu) {
    EngineQueue& out = queues[gpu];
    out.status = engines.StatusOf(static_cast<int>(gpu));
    // A stopped process and an engine that is not ready answer nothing. An engine that was silent for long
    // may answer again.
    const bool ready = out.status.state == EngineState::kReady && StoppedProcess(out.status.pid).empty();
    if (out.status.state == EngineState::kIdle) {
      out.why_none = "is idle: nobody uses it";
    } else if (!ready) {
      out.why_none = WhyNotReady(out.status);
    }
    if (ready) {
      askers.emplace_back([&engines, &out, gpu] {
        auto queue = engines.QueueSnapshot(static_cast<int>(gpu));
        if (queue.ok()) {
          out.queue = std::move(*queue);
        } else {
          // It may have been stopped since it was looked at.
          const std::string stopped = StoppedProcess(out.status.pid);
          out.why_none =
              stopped.empty() ? "does not answer: " + queue.status().message() : "does not run: " + stopped;
        }
      });
    }
  }
  for (std::thread& asker : askers) asker.join();
  return queues;
}

}  // namespace tandem::daemon
