// File: backends.h
//
// The CUDA backend of the program tandem-engine, where it was built with one: with_cuda.cc or
// without_cuda.cc.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "kernels/backend.h"
#include "tandem/status.h"

namespace tandem::engine {

// Settings that NCCL reads from the environment when it is loaded. First thing in main: before any thread.
void SetNcclEnvironment();

// The backend of the only GPU that the process sees. UNIMPLEMENTED in a build without CUDA.
Result<std::unique_ptr<Backend>> MakeCudaEngineBackend(const BackendRequest& request);

}  // namespace tandem::engine
