// File: build_version.h
//
// The version and the commit that a program was built from.
#pragma once

namespace tandem {

// "0.1.0+1a2b3c4d5e6f": the version, and the commit after a plus sign. ".dirty" at the end: files differed
// from that commit. Without a repository and without TANDEM_COMMIT the version alone.
const char* BuildVersion();

}  // namespace tandem
