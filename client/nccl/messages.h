// File: messages.h
//
// Lines to standard error, and the texts of failures that ncclGetLastError returns.
#pragma once

#include <string>
#include <string_view>

#include "tandem/status.h"

namespace tandem::nccl {

// Writes "tandem: " and the text as one line to standard error.
void Say(std::string_view text);
// The same, once a process for each text.
void SayOnce(std::string_view text);

// Keeps the text of a failure that belongs to no communicator. Thread-safe.
void SetLastError(std::string text);
// The latest such text; empty: there is none. Good until the thread's next call of this function.
const char* LastError();

// A failure in words, with the ranks that caused it.
std::string Describe(const Status& status);

}  // namespace tandem::nccl
