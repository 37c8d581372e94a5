// File: launch_outcome.h
//
// How launches end for their clients: failures by the log's entries, status records, done values written by
// the CPU.
//
// Thread rule: the engine's main thread only.
#pragma once

#include <cstdint>
#include <string>

#include "engine/launch/launch.h"
#include "engine/launch/launch_listener.h"
#include "ipc/order_log.h"

namespace tandem::engine {

// "launch 3 of plan 17", for messages.
std::string LaunchName(const InstalledPlan& plan, uint64_t count);
// How launch `count` ends by this entry of the log.
Failure FailureOf(const InstalledPlan& plan, uint64_t count, const LogEntry& entry);

inline constexpr char kRenewing[] = "RENEWING";

// Why launches end that the ranks of this mask, which renew their group, have not arrived at.
Failure RenewingFailure(uint8_t mask);

// Writes the status record; nothing for a launch by message. Always before the done value: a client that sees
// done reads the record.
void PublishOutcome(const Origin& origin, uint64_t generation, const Failure& failure);
// Lets the origin's next launch arrive.
void FreeOrigin(const Origin& origin);
// Ends a launch that no lane ends: writes the done value, or reports a launch by message to `listener`.
void CompleteByCpu(const Origin& origin, const Failure& failure, LaunchListener* listener);
// Releases a channel again after a done value was written over its release. Nothing for a channel that was
// not released.
void ReleaseAgain(Channel& channel);

}  // namespace tandem::engine
