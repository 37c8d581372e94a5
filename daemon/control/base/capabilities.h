// File: capabilities.h
//
// The capabilities that all engines of a group have. Control asks for these and never for a backend's name:
// engines that a tandemd took over may be of another build than those that it starts.
#pragma once

#include <vector>

#include "daemon/supervisor/engines.h"

namespace tandem::daemon {

// The capabilities that the engines of all these GPUs have. Nothing for no GPUs. Any thread may call it.
inline EngineCapabilities SharedCapabilities(const Engines& engines, const std::vector<int>& gpus) {
  EngineCapabilities shared = gpus.empty() ? EngineCapabilities{} : engines.StatusOf(gpus[0]).capabilities;
  for (const int gpu : gpus) {
    const EngineCapabilities own = engines.StatusOf(gpu).capabilities;
    shared.packet_kernels = shared.packet_kernels && own.packet_kernels;
    shared.communicators = shared.communicators && own.communicators;
    shared.ipc_memory = shared.ipc_memory && own.ipc_memory;
    shared.on_gpu = shared.on_gpu && own.on_gpu;
  }
  return shared;
}

}  // namespace tandem::daemon
