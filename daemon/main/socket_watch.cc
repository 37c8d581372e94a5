#include "daemon/main/socket_watch.h"

#include "common/log.h"

namespace tandem::daemon {

void SocketWatch::Note(const std::vector<FileRepair>& repairs) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const FileRepair& repair : repairs) {
    Record& record = files_[repair.path];
    const std::string error = repair.status.ok() ? std::string() : repair.status.message();
    if (error.empty()) {
      ++record.repairs;
      log::Warning(repair.path +
                   " had been removed or replaced, and has been made again: nobody could connect; "
                   "keep cleaners of temporary files away from it");
    } else if (error != record.error) {
      log::Error(repair.path + " has been removed or replaced, and cannot be made again: " + error);
    }
    record.error = error;
  }
}

std::vector<SocketFinding> SocketWatch::Findings() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SocketFinding> findings;
  for (const auto& [path, record] : files_) findings.push_back({path, record.repairs, record.error});
  return findings;
}

}  // namespace tandem::daemon
