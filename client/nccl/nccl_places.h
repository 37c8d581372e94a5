// File: nccl_places.h
//
// Where the process's real NCCL may lie. This library has its name, so the loader would return this library.
#pragma once

#include <string>
#include <vector>

namespace tandem::nccl {

// Paths of files that exist and are not `own`, the best first. TANDEM_NCCL_LIBRARY leads. Then come a library
// that the process has loaded, LD_LIBRARY_PATH, NCCL's wheel, and the loader's cache.
std::vector<std::string> NcclPlaces(const std::string& own);

// The paths that end with "/libnccl.so.2" in the bytes of the loader's cache.
std::vector<std::string> PathsInCache(const std::string& bytes);

// The file of NCCL's wheel in the folder of packages that `loaded` lies in; empty where there is none.
std::string WheelsPath(const std::string& loaded);

// The path of the file that this library was loaded from.
std::string OwnPath();

}  // namespace tandem::nccl
