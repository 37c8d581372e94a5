// File: program_codec.h
//
// Rank programs on their way to an engine: plan::RankProgram to its protobuf message and back.
#pragma once

#include "program/program.h"
#include "tandem/status.h"

namespace tandem::program::v1 {
class RankProgram;
}

namespace tandem::plan {

// Writes all of `program` into `message`.
void EncodeProgram(const RankProgram& program, program::v1::RankProgram* message);

// Reads a program and checks what its type alone demands: known kinds, ranks below the world size, lanes,
// dependencies on earlier steps, signal indexes, equal numbers of extents and strides. INVALID_ARGUMENT names
// the step.
Result<RankProgram> DecodeProgram(const program::v1::RankProgram& message);

}  // namespace tandem::plan
