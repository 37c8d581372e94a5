// File: rank_group.h
//
// The launcher's end of a group: its ranks' processes and the daemon that they go through. A group that has
// broken, or a rank that has died or fallen silent, is followed by the group's next incarnation with new
// processes.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/ranks/worker_process.h"
#include "tests/conformance/daemon_process.h"
#include "tests/conformance/options.h"

namespace tandem::conformance {

class RankGroup {
 public:
  explicit RankGroup(const Options& options) : options_(options) {}

  // Starts the ranks of `world` with arenas of so many bytes, and the daemon before them if none runs.
  Status Start(int world, size_t own_bytes, size_t symmetric_bytes);
  // Ends the ranks that are left and starts all anew; a daemon of our own that has ended, or whose group does
  // not come about, is replaced once.
  Status Restart();
  // Says `line` to all ranks, with `plant` in it for the last one if that is not empty, and hears one line
  // from each. From the first failure on the others have only `options.deadline` left.
  std::vector<Result<nlohmann::json>> Ask(const nlohmann::json& line, int timeout_ms,
                                          const std::string& plant = {});
  // The ranks leave and end; the daemon stays for the next Start.
  Status End();
  // Ends the ranks by force if they do not end by themselves at once, and the daemon too if `with_daemon`.
  void Stop(bool with_daemon);
  std::string DaemonLog() const { return daemon_ == nullptr ? std::string() : daemon_->LogTail(); }

 private:
  Status StartRanks();
  std::vector<Result<nlohmann::json>> HearAll(int timeout_ms);

  const Options& options_;
  Options rank_options_;  // as the ranks get them
  int world_ = 0;
  std::unique_ptr<DaemonProcess> daemon_;
  std::vector<std::unique_ptr<WorkerProcess>> ranks_;
};

}  // namespace tandem::conformance
