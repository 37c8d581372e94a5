// File: reference.h
//
// The right results of a case, in double precision. Independent of the planner's own
// reference.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/conformance/conformance_case.h"
#include "tests/conformance/values.h"

namespace tandem::conformance {

// The right contents of one output slot of one rank.
struct Expected {
  // Moved bytes: these, packed, to the bit. Empty if the output is computed.
  std::vector<std::byte> bytes;
  // Computed outputs: the values at `elements` (packed indices; all of them if empty, in order). With each,
  // what its rounding errors grow with: the magnitudes of the parts that ranks exchange, and of all terms
  // that accumulators sum.
  std::vector<double> values, parts, terms;
  std::vector<int64_t> elements;
};

// A case's inputs of all ranks, packed: [rank][slot].
using AllInputs = std::vector<std::vector<std::vector<std::byte>>>;
AllInputs MakeInputs(const Case& test, uint64_t seed);

// Output `slot` of `rank`. Only some rows of large products are computed: the first and last of each rank's
// chunk among them.
Expected ComputeExpected(const Case& test, const AllInputs& inputs, int rank, int slot);

}  // namespace tandem::conformance
