// File: choice_rule.h
//
// The choice that `auto` must make for an all-reduce by its size alone, from the planner's table of bounds.
// Every bound is inclusive, the algorithms follow each other in the order of their bounds, and the last needs
// none.
#pragma once

#include <cstdint>
#include <functional>

#include "daemon/planner/choice/bounds.h"
#include "tandem/op_request.h"

namespace tandem::conformance {

// For groups of two ranks and more behind NVSwitches or in a full mesh. `on_offer`: whether the group has an
// algorithm.
Algorithm AllReduceChoice(const plan::Bounds& bounds, uint64_t bytes,
                          const std::function<bool(Algorithm)>& on_offer);

}  // namespace tandem::conformance
