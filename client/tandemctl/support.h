// File: support.h
//
// `tandemctl support`: one archive with all that helps to explain a fault of this node, to attach to a
// report.
#pragma once

#include <map>
#include <string>

#include "client/tandemctl/connection.h"
#include "client/tandemctl/local_checks.h"
#include "tandem/status.h"

namespace tandem::ctl {

struct SupportOptions {
  std::string output;   // the archive; "": tandem-support-<time>.tar.gz in the current directory
  bool redact = false;  // replace names of users, jobs, cgroups and the host
};

// The parts of the archive, by file name: doctor, stats, listings, trace, configuration, journal, nvidia-smi,
// topology. A part that cannot be had says why. Works without a daemon.
std::map<std::string, std::string> CollectSupport(const Connection& connection, const LocalNode& node);

// Replaces in all parts what the sessions and groups of `listings` are called, their commands and cgroups,
// and the host's name: "session-name-1", "host". The same name is the same word everywhere. The journal is
// left out, since it may have names of sessions that have ended.
void Redact(const admin::v1::ListSessionsReply& sessions, const admin::v1::ListGroupsReply& groups,
            const std::string& host, std::map<std::string, std::string>* parts);

// Collects, redacts if that is wanted, and writes the archive by the program tar (0600). Prints its name.
Status WriteSupport(const Connection& connection, const LocalNode& node, const SupportOptions& options);

}  // namespace tandem::ctl
