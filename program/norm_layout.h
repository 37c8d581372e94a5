// File: norm_layout.h
//
// Limits of the kernel that adds dense packets and norms the rows of the sum. Planner and kernel must agree.
#pragma once

#include <cstdint>

namespace tandem::plan {

// Threads of a block that have words of a row, and the bytes of a word.
inline constexpr int64_t kNormThreads = 512, kNormWordBytes = 16;
// Thread blocks that may share a row: a cluster of 8 is portable.
inline constexpr int kMaxNormRowBlocks = 8;
// The most words of a row that one block keeps: more packets of each word leave registers for fewer words.
constexpr int64_t MaxNormWords(int world) { return kNormThreads * (world <= 4 ? 4 : 2); }
// Blocks share the rows of this many ranks at most.
inline constexpr int kMaxSharedRowRanks = 2;

}  // namespace tandem::plan
