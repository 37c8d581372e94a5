// File: collectives.h
//
// A collective's way: to Tandem where it serves the communicator and the call, else to NCCL.
#pragma once

#include <string_view>

#include "client/nccl/call.h"

namespace tandem::nccl {

inline constexpr char kGrouped[] = "it is part of a group of several operations";

// Runs the call outside of groups.
ncclResult_t RunCollective(const NcclCall& call);

// Passes the call to NCCL, and counts it with the reason.
ncclResult_t PassToNccl(const NcclCall& call, std::string_view reason);

}  // namespace tandem::nccl
