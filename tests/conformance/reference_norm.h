// File: reference_norm.h
//
// The right results of a norm behind a sum, in double precision.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/conformance/reference.h"

namespace tandem::conformance {

// Output `slot` of a rank whose sum is `sum`, of whole rows. `inputs`: the rank's own, packed, by slot.
Expected NormReference(const OpRequest& request, const std::vector<std::vector<std::byte>>& inputs, int slot,
                       Expected sum);

// Compares a rank's quantised norm, and the scales that it made, with those of the norm that it wrote. Returns the
// first difference, or nothing. All bits count, except those of NaNs. `inputs` and `outputs` are the rank's own,
// packed, by slot.
std::string WrongQuantization(const OpRequest& request, const std::vector<std::vector<std::byte>>& inputs,
                              const std::vector<std::vector<std::byte>>& outputs);

}  // namespace tandem::conformance
