// File: cache_folder.h
//
// Where the library keeps what it may lose: choices that cost a trial to make anew.
#pragma once

#include <string>

namespace tandem::client {

// $TANDEM_CACHE_DIR, as it is; else the folder "tandem" in $XDG_CACHE_HOME or in ~/.cache. Empty, which means that
// nothing is kept, where $TANDEM_CACHE_DIR is empty, no absolute folder is named, or the process runs with
// rights that its caller lacks. The folder may not exist. Reads the environment.
std::string CacheFolder();

}  // namespace tandem::client
