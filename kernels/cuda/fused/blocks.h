// File: blocks.h
//
// Counts of blocks, on the host.
#pragma once

#include <cstdint>

namespace tandem::cuda {

// The blocks of `block` that cover `count`.
constexpr int64_t Blocks(int64_t count, int64_t block) { return (count + block - 1) / block; }

}  // namespace tandem::cuda
