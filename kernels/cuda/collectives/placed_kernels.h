// File: placed_kernels.h
//
// The kernels of placed.h, compiled apart. Each function gives the kernel for a launch's type, shape and
// world size; null: there is none.
#pragma once

#include "kernels/cuda/collectives/placed.h"

namespace tandem::cuda {

const void* PlacedPhasesKernel(const PlacedPhasesLaunch& launch);
const void* PlacedPacketsKernel(const PlacedPacketsLaunch& launch);
// Addresses and sizes decide which of several it is.
const void* PlacedDenseKernel(const PlacedPacketsLaunch& launch);
// Loads all of these into the current context.
Status LoadPlacedDense(const PlacedPacketsLaunch& launch);

}  // namespace tandem::cuda
