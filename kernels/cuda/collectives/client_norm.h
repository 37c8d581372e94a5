// File: client_norm.h
//
// Launchers of the kernel for a sum by dense packets with an RMSNorm behind it, for client placement.
#pragma once

#include "kernels/cuda/collectives/client_launch.h"
#include "kernels/cuda/device/norm_manner.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

// A sum by dense packets in one shot whose rows are normed at once. The sum itself is stored nowhere.
struct ClientNormLaunch {
  ClientPacketsLaunch sum;  // `destination` is not read
  NormLaunch norm;          // its `sum` is not read; all addresses are multiples of 16
  int words = 1;            // of 16 bytes, that a thread has of a row: 1, 2 or 4
  int row_blocks = 1;       // a power of two: thread blocks of a cluster that share a row
  NormManner manner;        // in a fixed order no cluster shares a row
  NormQuantization quantization;
};

// The launch of `sum` and of `norm`, which reads the result of `sum`, as one kernel. Ranks of a group may
// differ in that, since packets are alike for all grids. Returns false if the kernel does not take them.
bool MakeClientNorm(const ClientPacketsLaunch& sum, const NormLaunch& norm,
                    const NormQuantization& quantization, ClientNormLaunch* out);

// INVALID_ARGUMENT for more blocks than there are counters.
Status LaunchClientNorm(const ClientNormLaunch& launch, CUstream_st* stream);
// Loads the kernel into the current context; see LoadClientPackets.
Status LoadClientNorm(const ClientNormLaunch& launch);

}  // namespace tandem::cuda
