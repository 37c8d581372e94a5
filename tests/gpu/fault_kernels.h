// File: fault_kernels.h
//
// Harm by a process to the others on its GPU, for the tests of recovery: faults, kernels that do not end,
// streams that wait for ever. Every function acts on the device that the calling thread has chosen, and
// returns CUDA's error code: 0 is success.
#pragma once

#include <cstdint>

namespace tandem::faults {

// For UseDevice: the device whose context is current on this thread.
inline constexpr int kCurrentDevice = -1;
// Chooses device `ordinal` for this thread, makes its context, and what the functions below need in it.
int UseDevice(int ordinal);
// Chooses the device of UseDevice on another thread: a thread that has chosen none makes a context on device
// 0.
int EnterDevice();
// CUDA's name for an error code, "cudaErrorIllegalAddress" for example.
const char* ErrorName(int error);

// Stores to an address that nobody has mapped, and waits for the error.
int IllegalAccess();
// Fills the GPU with a kernel that runs for `milliseconds`; returns as soon as it is running.
int Spin(int64_t milliseconds);
// Puts a wait for a word that nobody writes on a new stream; returns at once.
int WaitForEver();

// Ways to find out whether the context still lives, from the dearest to the cheapest; each waits for its own
// work only.
int ProbeByKernel();  // launches a kernel and synchronises
int ProbeByWrite();   // a stream writes a word, and synchronises
int ProbeByQuery();   // cudaStreamQuery of an idle stream

}  // namespace tandem::faults
