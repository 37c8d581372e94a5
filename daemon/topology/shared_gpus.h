// File: shared_gpus.h
//
// GPUs that several engines share (`engines_per_gpu`): more ranks than there are GPUs, for tests. To
// everybody but NVML and CUDA a share is a GPU, with a part of the memory. Pure functions.
#pragma once

#include "daemon/topology/topology.h"
#include "tandem/status.h"

namespace tandem {

// `engines` shares of each GPU of `topology`, all first ones first, so that neighbours are of different
// devices where there are several. Shares of one device reach each other as if they were linked. Their model
// says that they are shares: no tuning table of whole GPUs holds for them. INVALID_ARGUMENT if that makes
// more than kMaxGpus.
Result<Topology> ShareGpus(const Topology& topology, int engines);

// Whether two GPUs of the topology are shares of one device.
bool SharesDevice(const Topology& topology);

}  // namespace tandem
