// File: client_kernels.h
//
// The kernels of client_launch.h, compiled apart. Each function gives the kernel for a launch's type, shape
// and world size; null: there is none.
#pragma once

#include "kernels/cuda/collectives/client_launch.h"

namespace tandem::cuda {

const void* ClientPhasesKernel(const ClientPhasesLaunch& launch);
const void* ClientPacketsKernel(const ClientPacketsLaunch& launch);
// Addresses and sizes decide which of several it is.
const void* ClientDenseKernel(const ClientPacketsLaunch& launch);
// Loads all of these into the current context.
Status LoadClientDense(const ClientPacketsLaunch& launch);

}  // namespace tandem::cuda
