// File: pair_probe.h
//
// Probes every pair of GPUs with data: each engine writes into the others' memory over the link, by copy
// engine and by a kernel, the owner checks what has arrived, and the writer reads it back. NVML's report of
// peer access is not trusted without the probe. The outcome is kept for the boot, in the state directory.
#pragma once

#include <string>
#include <vector>

#include "daemon/observe/link_traffic.h"
#include "daemon/supervisor/engines.h"
#include "daemon/topology/topology.h"
#include "tandem/status.h"

namespace tandem::daemon {

// Data between these two GPUs (UUIDs) does not arrive as it was sent.
struct PairFailure {
  std::string from, to;
  std::string reason;
};

// Probes all pairs that have peer access, by engines that are ready and do nothing else. UNAVAILABLE when an
// engine is not there or ends meanwhile: then nothing is known.
Result<std::vector<PairFailure>> ProbePairs(Engines& engines, const Topology& topology);

// The part of a probe that is kept.
struct ProbeOutcome {
  std::vector<PairFailure> failures;
  std::vector<LinkRate> links;  // none in a file of a version that did not measure them
};

// The outcome of an earlier probe of these GPUs in this boot; NOT_FOUND if there is none that can be used.
Result<ProbeOutcome> LoadProbe(const std::string& path, const std::string& boot_id, const Topology& topology);
Status SaveProbe(const std::string& path, const std::string& boot_id, const Topology& topology,
                 const ProbeOutcome& outcome);

// Takes the pairs that failed out of `topology`: no peer access, both ways.
void DropFailedPairs(const std::vector<PairFailure>& failures, Topology* topology);

// The kernel's id of this boot; "" if it does not say.
std::string BootId();

}  // namespace tandem::daemon
