// File: reference_matmul.h
//
// The products among the reference's operations.
#pragma once

#include "tests/conformance/reference.h"

namespace tandem::conformance {

// Output `slot` (role C) of a matmul with or without communication on `rank`.
Expected MatmulReference(const Case& test, const AllInputs& inputs, int rank, int slot);

}  // namespace tandem::conformance
