// File: stress.h
//
// Many launches of many plans from several streams and a replayed graph, with no waiting in between. Each
// rank submits in a different order across streams, and one rank is late at random. No single case can show
// the faults that this finds.
#pragma once

#include <nlohmann/json.hpp>

#include "tests/conformance/rank.h"

namespace tandem::conformance {

// Makes `launches` launches with all other ranks. {"status", "message", "launches", "seconds", "delays",
// "checks", "fused": how many of the plans are fused, "families": how many are families}. An algorithm that is not on offer is replaced
// by the daemon's choice.
nlohmann::json RunStress(Rank& rank, int launches);

// The cases whose plans the stress launches, and the arenas' bytes that it needs.
std::vector<Case> StressCases(int world, bool in_client);
struct ArenaBytes {
  size_t own = 0, symmetric = 0;
};
Result<ArenaBytes> StressBytes(int world, bool in_client);

}  // namespace tandem::conformance
