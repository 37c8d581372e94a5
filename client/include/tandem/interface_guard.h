// File: interface_guard.h
//
// A program that was compiled with other C++ headers than the library's does not start: the loader names the
// missing symbol tandem::kInterface_…. The C interface is ABI-stable and has no such guard.
#pragma once

// The digest of the C++ headers without comments and spaces: tests/source/test_interface_guard.py.
#define TANDEM_INTERFACE kInterface_edefc5f9adcb

#ifndef TANDEM_NO_INTERFACE_GUARD  // set by the gRPC plugin, which is built with the library

namespace tandem {

__attribute__((visibility("default"))) extern const char TANDEM_INTERFACE;
// Each object file refers to the symbol, so that the program needs it at its start.
[[gnu::used]] static const char* const kInterfaceGuard = &TANDEM_INTERFACE;

}  // namespace tandem

#endif
