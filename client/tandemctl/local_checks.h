// File: local_checks.h
//
// The doctor's half that needs no daemon: why none answers, and what the node lacks for one. Units, sockets,
// groups, device files, the driver, MPS, the fabric manager.
#pragma once

#include <functional>
#include <string>

#include "tandem/admin/v1/admin.pb.h"
#include "tandem/status.h"

namespace tandem::ctl {

// Where the checks look; a parameter for tests.
struct LocalNode {
  std::string root;  // before /dev, /proc and /etc; "": the machine's own
  std::string runtime_dir = "/run/tandem";
  std::string admin_dir = "/run/tandem-admin";
  // Output of a program, standard error too, without the last line feed. Empty if it cannot be run.
  std::function<std::string(const std::string& command)> run;
};

// This machine: programs end after 10 s.
LocalNode ThisNode(std::string runtime_dir, std::string admin_dir);

// The output of the shell's `command`, standard error included. The command is ended after `seconds`.
std::string RunCommand(const std::string& command, int seconds);

// Returns findings as tandemd's doctor gives them. answer: the code that the daemon's socket gave. The first
// finding is a FAILURE: where that is PERMISSION_DENIED, this user may not use the daemon; else none answers.
admin::v1::DoctorReply CheckLocally(const LocalNode& node, Code answer);

}  // namespace tandem::ctl
