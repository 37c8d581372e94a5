// File: protocol.h
//
// Versions of the protocol between clients and tandemd (docs/protocol.md, "Versions"): lease messages, the
// Tandem service, channels, and programs of client-placed plans. A version is a number; a session speaks one.
#pragma once

#include <cstdint>

namespace tandem {

// N, which this build's client library speaks, and N-1, the oldest that its tandemd accepts.
inline constexpr uint32_t kProtocol = 2;
inline constexpr uint32_t kOldestProtocol = kProtocol - 1;

// The first version whose clients launch plans on their own streams, and come back to the next tandemd.
inline constexpr uint32_t kClientPlacementProtocol = 2, kReattachProtocol = 2;

// The newest version in both [min, max] and what this build accepts; 0: there is none.
constexpr uint32_t CommonProtocol(uint32_t min, uint32_t max) {
  const uint32_t newest = max < kProtocol ? max : kProtocol;
  return newest >= kOldestProtocol && newest >= min ? newest : 0;
}

}  // namespace tandem
