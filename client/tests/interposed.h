// File: interposed.h
//
// Threads, mappings and memfds that run out: a program that is linked with interposed.cc has a pthread_create, an
// mmap and a memfd_create that fail where a test says. Threads of the library take part in
// BackgroundAllocations (allowance.h).
#pragma once

#include "client/tests/allowance.h"

namespace tandem {

// The calling thread's allowances. Mappings are those of a descriptor.
Allowance& Threads();
Allowance& Mappings();
Allowance& Descriptors();

}  // namespace tandem
