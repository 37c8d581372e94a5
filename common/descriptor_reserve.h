// File: descriptor_reserve.h
//
// Descriptors that stay free whatever clients do: for the administrators' socket, for engines, and for
// leases. A process that has none left can neither answer an operator nor start an engine.
#pragma once

namespace tandem {

enum class DescriptorUse {
  kClient,    // clients' connections, and what clients send
  kLease,     // connections of clients that attach
  kOperator,  // everything else: no bound but the process's limit
};

// Whether a new descriptor of this number may be kept for `use`. The kernel hands out the lowest free number,
// so the number says how many are in use at least; nothing has to be counted.
bool LeavesReserve(int fd, DescriptorUse use);

// The largest part of the process's descriptors that one user may have, by the hard limit.
unsigned long long DescriptorsOfOneUser();

}  // namespace tandem
