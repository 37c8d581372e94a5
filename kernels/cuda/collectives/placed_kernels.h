// File: placed_kernels.h
//
// The kernels of placed.h, compiled apart. Each function gives the kernel for a launch's type, shape and world
// size; null: there is none.
#pragma once

#include "kernels/cuda/collectives/placed.h"

namespace tandem::cuda {

const void* PlacedPhasesKernel(const PlacedPhasesLaunch& launch);
const void* PlacedPacketsKernel(const PlacedPacketsLaunch& launch);
unsigned PlacedPacketsThreads(const PacketsLaunch& packets);  // of a block
const void* PlacedDenseKernel(const PlacedPacketsLaunch& launch);
unsigned PlacedDenseThreads(const PacketsLaunch& packets);

}  // namespace tandem::cuda
