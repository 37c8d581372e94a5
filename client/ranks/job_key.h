// File: job_key.h
//
// A job key that nobody guesses: groups are scoped by it, so no other process can join those of a program
// that drew one.
#pragma once

#include <string>

#include "tandem/status.h"

namespace tandem {

// 32 hex digits of 128 random bits. INTERNAL if the system gives none.
Result<std::string> RandomJobKey();

}  // namespace tandem
