// File: reference_norm.h
//
// The right results of a norm behind a sum, in double precision.
#pragma once

#include <cstddef>
#include <vector>

#include "tests/conformance/reference.h"

namespace tandem::conformance {

// Output `slot` of a rank whose sum is `sum`, of whole rows. `inputs`: the rank's own, packed, by slot.
Expected NormReference(const OpRequest& request, const std::vector<std::vector<std::byte>>& inputs, int slot,
                       Expected sum);

}  // namespace tandem::conformance
