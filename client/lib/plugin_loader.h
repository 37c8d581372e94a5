// File: plugin_loader.h
//
// Finds and loads the gRPC plugin.
#pragma once

#include <memory>

#include "client/lib/base/control_api.h"

namespace tandem::client {

// Loads libtandem_grpc.so once a process ($TANDEM_GRPC_LIBRARY, else beside the file that holds this
// code) and makes a Control. FAILED_PRECONDITION says why it cannot be loaded.
Result<std::unique_ptr<ClientControl>> MakeControl();

}  // namespace tandem::client
