// File: low_latency.h
//
// The data that the flag-in-data algorithm (kLowLatency) can carry: small contiguous pieces, each eight bytes
// beside their launch number in the group's packets.
#pragma once

#include <string>

#include "daemon/planner/problem/problem.h"

namespace tandem::plan {

// Whether what is sent travels in dense packets: gathers of clients, and their sums of floating-point types
// of 16 and 32 bits.
bool SendsDensePackets(const Problem& problem);
// Empty, or why packets cannot carry the request.
std::string WhyNoPackets(const Problem& problem);
// The shots of a low-latency all-reduce: one while everybody can send everything to all, else two.
int LowLatencyShots(const Problem& problem);

}  // namespace tandem::plan
