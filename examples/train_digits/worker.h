// File: worker.h
//
// One rank of the training, in its own process. It reports to the launcher in JSON lines:
//   {"event":"joined", …}   once: topology, backend, placement
//   {"event":"step", …}     after every step: epoch, step
//   {"event":"epoch", …}    after every epoch: loss; its checkpoint is written
//   {"event":"gradients"…}  after the first step: this rank's gradients
//   {"event":"lost", …}     the group broke: status, when it was seen (CLOCK_MONOTONIC ns). Then the worker
//                           waits for a line
//                           {"resume_epoch": N}, joins again and goes on after epoch N.
//   {"event":"plans"|"sweep"|"variant"|"done"|"failed", …}
#pragma once

#include <cstdint>

#include "common/unique_fd.h"
#include "examples/train_digits/options.h"

namespace tandem::digits {

// The clock of the event "lost", which the launcher reads too.
int64_t MonotonicNs();

// Runs the rank to its end; the process's exit code. `in` and `out` are the worker's ends of the pipes.
int RunWorker(const Options& options, UniqueFd in, UniqueFd out);

}  // namespace tandem::digits
