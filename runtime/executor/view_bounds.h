// File: view_bounds.h
//
// Checks that a program is of its rank, and that its views stay inside their memory. Pure.
#pragma once

#include <cstdint>

#include "program/program.h"
#include "runtime/executor/executor.h"
#include "tandem/status.h"

namespace tandem::runtime {

// INVALID_ARGUMENT or OUT_OF_RANGE: the program is of another rank or world, or needs more lanes or memory
// than there is.
Status CheckFrame(const plan::RankProgram& program, const ProgramLimits& limits);

// The bytes of the memory that `view` is in, `name` in errors. OUT_OF_RANGE: no such rank or slot.
// INVALID_ARGUMENT: no such space, or a peer's slot that is not symmetric.
Result<uint64_t> LimitOf(const plan::View& view, const plan::RankProgram& program,
                         const ProgramLimits& limits, const char* name);

// Checks `view` against `limit` bytes of memory, `name` in errors; returns whether it has no elements.
// INVALID_ARGUMENT for a malformed or unaligned view, OUT_OF_RANGE for one that ends beyond the limit.
Result<bool> CheckInside(const plan::View& view, uint64_t limit, const char* name);

}  // namespace tandem::runtime
