// File: reference_interpreter.h
//
// Runs all ranks' programs in one thread over plain byte buffers, choosing at random among the steps that may
// run next, so that programs whose order is not forced give wrong results under some seed. Slow and simple on
// purpose.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/program.h"
#include "program/verifier/verifier.h"
#include "tandem/status.h"

namespace tandem::plan {

// The operands of one launch, [rank][slot]; a slot that is an alias of another has no bytes.
using LaunchOperands = std::vector<std::vector<std::vector<uint8_t>>>;

struct InterpretOptions {
  uint64_t seed = 1;        // odd seeds choose uniformly, even ones by priorities that change now and then
  int hardware_queues = 0;  // as in VerifyOptions
  bool alternate_parity = true;  // as in VerifyOptions
};

// Runs one launch for each element of `operands`, back to back. A rank begins the next launch as soon as its
// own lanes have ended the last, however far the peers are. With a bulk area it waits until all ranks have
// ended. Workspace starts as garbage. INTERNAL with reason "DEADLOCK" if nothing can run and not all have
// ended.
Status Interpret(std::span<const RankProgram> programs, const VerifyContext& context,
                 std::vector<LaunchOperands>& operands, const InterpretOptions& options);

}  // namespace tandem::plan
