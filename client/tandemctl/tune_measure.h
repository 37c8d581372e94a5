// File: tune_measure.h
//
// The measurement of one case by rank processes: prepares every candidate, lets them take turns, and counts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/tandemctl/tune_ranks.h"
#include "client/tandemctl/tune_setup.h"
#include "tandem/admin/v1/admin.pb.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::ctl {

// Times of `candidates` for `request`, in their order; those that cannot run have `refused`. The ranks make a
// group for it and leave it again. `idle` is asked after each round, and its error ends the measurement. Says
// on standard error how far it is. After an error the ranks are of no use any more. FAILED_PRECONDITION when
// no candidate can run.
Result<std::vector<admin::v1::TuningCandidate>> MeasureCase(TuneRanks& ranks, const OpRequest& request,
                                                            const std::vector<TuneCandidate>& candidates,
                                                            const TuneOptions& options,
                                                            const std::function<Status()>& idle);

}  // namespace tandem::ctl
