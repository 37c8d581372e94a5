// File: stress.h
//
// Many launches of many plans from several streams and a replayed graph, with no waiting in between, each
// rank submitting in an order of its own across streams, and one rank late at random: what no single case can
// show.
#pragma once

#include <nlohmann/json.hpp>

#include "tests/conformance/rank.h"

namespace tandem::conformance {

// Makes `launches` launches with all other ranks. {"status", "message", "launches", "seconds", "delays",
// "checks", "fused": how many of the plans are fused}. What is not on offer runs by the daemon's own
// choice.
nlohmann::json RunStress(Rank& rank, int launches);

// The cases whose plans the stress launches, and the arenas' bytes that it needs.
std::vector<Case> StressCases(int world, bool in_client);
struct ArenaBytes {
  size_t own = 0, symmetric = 0;
};
Result<ArenaBytes> StressBytes(int world, bool in_client);

}  // namespace tandem::conformance
