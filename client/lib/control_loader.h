// File: control_loader.h
//
// Finds and loads the control half.
#pragma once

#include <memory>

#include "client/lib/control_api.h"

namespace tandem::client {

// Loads libtandem_control.so once a process ($TANDEM_CONTROL_LIBRARY, else beside the file that holds this
// code) and makes a Control. FAILED_PRECONDITION says why it cannot be loaded.
Result<std::unique_ptr<Control>> MakeControl();

}  // namespace tandem::client
