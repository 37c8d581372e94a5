// File: commands.h
//
// tandemctl's subcommands that ask the daemon. Each prints to standard output and returns what went wrong.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "client/tandemctl/connection.h"
#include "tandem/status.h"

namespace tandem::ctl {

struct CommandOptions {
  bool json = false;
  bool ready = false;           // health
  bool once = false;            // top
  bool undo = false;            // cordon, drain
  bool programs = false;        // plans
  bool segments = false;        // pools
  double interval_seconds = 1;  // top
  double drain_seconds = 60;
  double job_seconds = 60;  // suspend, resume
  uint64_t id = 0;          // plans: a plan; evict, suspend, resume: a session
  uint64_t group_id = 0;    // plans
  std::string page;         // plans: where to go on
  uint32_t last = 0;        // trace
  bool force = false;       // evict
  std::string gpu;          // cordon, evict, reset: an index or a UUID; "": the node, a session
  std::string output;       // trace: "" or "-" is standard output; support: the archive
  bool redact = false;      // support
};

Status ShowTopology(const Connection& connection, const CommandOptions& options);
// FAILED_PRECONDITION if tandemd is not live, or with `ready` if the node is not ready.
Status ShowHealth(const Connection& connection, const CommandOptions& options);
// FAILED_PRECONDITION if a finding is a failure. Where no daemon answers: the findings of this machine alone,
// and why none answers.
Status ShowDoctor(const Connection& connection, const CommandOptions& options);
Status ShowSessions(const Connection& connection, const CommandOptions& options);
Status ShowGroups(const Connection& connection, const CommandOptions& options);
Status ShowPools(const Connection& connection, const CommandOptions& options);
Status ShowPlans(const Connection& connection, const CommandOptions& options);
Status ShowQueue(const Connection& connection, const CommandOptions& options);
Status ShowStats(const Connection& connection, const CommandOptions& options);
// Rates over one interval after the other, until interrupted; on a pipe, with `once` or as JSON over one
// interval.
Status ShowTop(const Connection& connection, const CommandOptions& options);
Status WriteTrace(const Connection& connection, const CommandOptions& options);
// Writes an archive for a report (support.h).
Status Support(const Connection& connection, const CommandOptions& options);
Status Cordon(const Connection& connection, const CommandOptions& options);
// FAILED_PRECONDITION if groups are left at the end.
Status Drain(const Connection& connection, const CommandOptions& options);
Status Evict(const Connection& connection, const CommandOptions& options);
// DEADLINE_EXCEEDED if the job is late.
Status Suspend(const Connection& connection, const CommandOptions& options);
Status Resume(const Connection& connection, const CommandOptions& options);
Status Reset(const Connection& connection, const CommandOptions& options);

}  // namespace tandem::ctl
