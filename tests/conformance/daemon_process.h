// File: daemon_process.h
//
// A tandemd of the run's own, in a temporary folder.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "tandem/status.h"
#include "tests/conformance/options.h"

namespace tandem::conformance {

class DaemonProcess {
 public:
  // Starts tandemd with `gpus` GPUs (host backend) and waits until it answers.
  static Result<std::unique_ptr<DaemonProcess>> Start(const Options& options, int gpus);
  // Ends it, and removes its folder.
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  // False once it has ended by itself.
  bool Running();
  const std::string& runtime_dir() const { return folder_; }
  // The last lines of the daemon's log.
  std::string LogTail() const;

 private:
  DaemonProcess(std::string folder, std::string log) : folder_(std::move(folder)), log_(std::move(log)) {}

  std::string folder_, log_;
  pid_t pid_ = -1;
};

}  // namespace tandem::conformance
