// File: launch_status.h
//
// Errors of the runtime's calls around kernels.
#pragma once

#include "tandem/status.h"

namespace tandem::cuda {

// The status of the launch just made; `kernel` is its name.
Status LaunchStatus(const char* kernel);
// Makes the current context hold the kernel's code. `name` is for the failure's text.
Status LoadKernel(const char* name, const void* kernel);

}  // namespace tandem::cuda
