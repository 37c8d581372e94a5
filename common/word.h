// File: word.h
//
// The 64-bit word that streams, lanes and processes write and wait on.
#pragma once

#include <atomic>
#include <cstdint>

namespace tandem {

// Lies in host memory, in memory that two processes map, or in device memory that the host can name.
using Word = std::atomic<uint64_t>;
static_assert(sizeof(Word) == 8 && Word::is_always_lock_free);

}  // namespace tandem
