// File: launch_word.h
//
// A word of a client-placed launch, on the host and on GPUs: the launch's number, and its tag in the low
// bits.
#pragma once

namespace tandem {

// Bits of a word below the launch's number: its tag.
inline constexpr int kLaunchTagBits = 16;

}  // namespace tandem
