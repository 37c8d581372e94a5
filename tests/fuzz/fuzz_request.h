// File: fuzz_request.h
//
// Groups and requests for operations out of a fuzzer's bytes. Requests are first built as their operation
// wants them, from small sizes, and then changed here and there as the input says.
#pragma once

#include <vector>

#include "daemon/planner/planner.h"
#include "tandem/op_request.h"
#include "tests/fuzz/fuzz_input.h"

namespace tandem::fuzz {

// A group of 1 to 8 GPUs behind switches, fully linked, as a DGX-1, in pairs, or on PCIe alone.
plan::GroupContext TakeGroup(FuzzInput& input);

// One request a rank, as CompareRequests and MakePlan take them.
std::vector<OpRequest> TakeRequests(FuzzInput& input, int world_size);

}  // namespace tandem::fuzz
