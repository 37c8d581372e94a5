// File: link_rates.h
//
// How fast one GPU pushes into another's memory: measured by the engines when the links have been probed, one
// pair at a time, so that nothing else is on the link. For people: plans are not chosen by it.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/observe/link_traffic.h"
#include "daemon/supervisor/engines.h"
#include "daemon/topology/topology.h"
#include "tandem/status.h"

namespace tandem::daemon {

// The rate of each ordered pair with peer access, by copies of `bytes` (whole pages). The engines are ready
// and do nothing else. UNAVAILABLE when an engine is not there or ends meanwhile; what it takes of the GPUs'
// memory is given back.
Result<std::vector<LinkRate>> MeasureLinks(Engines& engines, const Topology& topology, uint64_t bytes);

// True if `rates` has each ordered pair with peer access.
bool HasAllLinks(const std::vector<LinkRate>& rates, const Topology& topology);

}  // namespace tandem::daemon
