// File: compare.h
//
// The judgement of one output: to the bit where bytes only move or values are exact, else within bounds for
// each element and for the norm of the whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/reference.h"

namespace tandem::conformance {

// The way in which an output was computed, which bounds its error.
struct Execution {
  int roundings = 1;                       // the plan's, of one element
  Algorithm algorithm = Algorithm::kAuto;  // the plan's
  bool cuda = false;
};

// Empty if the packed output is right, else what is wrong with its first wrong element, or with the norm.
std::string CompareOutput(const Case& test, int rank, int slot, const Execution& execution,
                          const Expected& expected, const std::vector<std::byte>& packed);

// Changes with every byte.
uint64_t HashOf(const std::vector<std::byte>& bytes);

}  // namespace tandem::conformance
