// File: family.h
//
// Cases as launches of families (OpRequest::max_rows): a case's request with a bound above its own rows.
#pragma once

#include "tandem/client.h"
#include "tests/conformance/conformance_case.h"

namespace tandem::conformance {

struct FamilyCase {
  OpRequest request;  // of this rank
  int64_t rows = 0;   // of the case itself
  int64_t unit = 1;   // numbers of rows are multiples of it
};

// The family of `rank`'s request of `test`, with a bound that `draw`, alike on all ranks, chooses from the
// case's own rows on. INVALID_ARGUMENT for a case that has no family: no rows, none at all, or strides that
// more rows would not fit.
Result<FamilyCase> FamilyOf(const Case& test, int rank, uint64_t draw);

// `test` with another number of rows, 1 or more.
Result<Case> WithRows(const Case& test, int64_t rows);

// Roundings that a launch may have beyond its plan's: some ranges of rows have another algorithm.
inline constexpr int kMoreRoundings = 1;

}  // namespace tandem::conformance
