// File: tune.h
//
// `tandemctl tune`: measures the algorithms of operations at given shapes with real engines, and hands the
// times to tandemd; `tandemctl tuning`: shows and forgets them.
//
// A time is that of a launch through the library, the daemon's queue and the engines, as a training process
// makes it. The candidates take turns in rounds, in a random order each time: a machine that grows warm or
// busy does so for all of them. The slowest rank's time counts for a round, the median of the rounds for a
// candidate.
#pragma once

#include <string>
#include <vector>

#include "client/tandemctl/connection.h"
#include "client/tandemctl/tune_setup.h"
#include "tandem/status.h"

namespace tandem::ctl {

// Measures the cases one after the other with the same rank processes, and hands each in when it is done.
// Prints progress to standard error and each case's table, or all as JSON at the end, to standard output.
// PERMISSION_DENIED before anything is started if this user may not change the table; FAILED_PRECONDITION if
// other groups use the GPUs, before or meanwhile. A case that fails is named, and the others go on; the first
// failure is the answer. DEADLINE_EXCEEDED if the time limit left cases out.
Status Tune(const Connection& connection, const std::string& runtime_dir, const std::vector<TuneCase>& cases,
            const TuneOptions& options, bool json);

Status ListTuning(const Connection& connection, bool json);
// The requests that plans were made for without a time.
Status ListWantedTuning(const Connection& connection, bool json);
Status ShowTuning(const Connection& connection, const std::string& id, bool json);
// One entry, or all that were measured on this node; INVALID_ARGUMENT unless it is one of the two: a script's
// empty variable must not drop everything.
Status ForgetTuning(const Connection& connection, const std::string& id, bool all, bool json);

}  // namespace tandem::ctl
