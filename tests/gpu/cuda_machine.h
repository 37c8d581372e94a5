// File: cuda_machine.h
//
// The executor's TestMachine on real GPUs.
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/executor/tests/test_machine.h"

namespace tandem::runtime {

// `ranks` ranks, rank r on GPU r modulo the number of visible GPUs, each with an arena of `arena_bytes` (a
// multiple of 2 MiB) that all of them map. Ends the program where there is no GPU. Ranks that share a GPU
// have no communicators.
std::unique_ptr<TestMachine> MakeCudaMachine(int ranks, size_t arena_bytes);

}  // namespace tandem::runtime
