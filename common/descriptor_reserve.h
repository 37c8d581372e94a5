// File: descriptor_reserve.h
//
// Descriptors that stay free whatever clients do: for the administrators' socket and for engines. A process
// that has none left can neither answer an operator nor start an engine.
#pragma once

#include "tandem/status.h"

namespace tandem {

enum class DescriptorUse {
  kClient,    // clients' connections, and what clients send
  kOperator,  // everything else: no bound but the process's limit
};

// Whether a new descriptor of this number may be kept for `use`. The kernel hands out the lowest free number,
// so the number says how many are in use at least; nothing has to be counted.
bool LeavesReserve(int fd, DescriptorUse use);

// Whether another client may attach: its connections and watches take kDescriptorsOfAClient more than the
// lease, `fd`.
bool HasRoomForClient(int fd);
// RESOURCE_EXHAUSTED, reason FD_LIMIT, with this process's limit: what HasRoomForClient and LeavesReserve
// refuse.
Status TooFewDescriptors();

// OK if this process may have as many descriptors as tandemd needs for `gpus` engines and some clients; else
// FD_LIMIT.
Status CheckDescriptorLimit(int gpus);

// The largest part of the process's descriptors that one user may have, by the hard limit.
unsigned long long DescriptorsOfOneUser();

}  // namespace tandem
