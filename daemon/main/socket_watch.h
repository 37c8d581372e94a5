// File: socket_watch.h
//
// `SocketWatch`: what has become of the files that tandemd has in its directories: sockets and the lock.
// Somebody removes them now and then, most often a cleaner of temporary files. Then nobody can connect, while
// everything else looks well. Thread-safe.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "daemon/observe/doctor.h"
#include "tandem/status.h"

namespace tandem::daemon {

// A file that was gone, or was another one.
struct FileRepair {
  std::string path;
  Status status;  // OK: it is there again
};

class SocketWatch {
 public:
  // Takes up repairs, and logs them: each one that worked, and a failure once until its cause changes.
  void Note(const std::vector<FileRepair>& repairs);
  // For doctor: what has been repaired, and what is missing now.
  std::vector<SocketFinding> Findings() const;

 private:
  struct Record {
    int repairs = 0;
    std::string error;  // of the latest try; empty: the file is there
  };
  mutable std::mutex mutex_;
  std::map<std::string, Record> files_;  // by path
};

}  // namespace tandem::daemon
