// File: nvml_topology.h
//
// Builds a `Topology` from NVML. A property that NVML does not report becomes a warning and the cautious
// value (no link, no peer access). A GPU that has fallen off the bus is left out and named; the others go
// on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/topology/topology.h"
#include "drivers/nvml/nvml.h"
#include "tandem/status.h"

namespace tandem {

struct NvmlTopology {
  Topology topology;                  // source is "nvml"; GPUs in NVML's order, by PCI bus id
  std::string driver_version;         // "": NVML does not report it
  std::vector<std::string> warnings;  // for doctor and the log; each names the GPU
};

// CUDA_VISIBLE_DEVICES of this process, if it is set.
std::optional<std::string> VisibleDevices();

// Asks `nvml` for all GPUs (the first kMaxGpus; the rest is named in a warning), their NVLinks, peer access
// and PCIe distances. UNAVAILABLE when there is no usable GPU, with every one's reason. Peer access here is
// what the driver reports; engines probe it with data. `visible`: CUDA_VISIBLE_DEVICES as a scheduler sets
// it, NVML indices or (beginnings of) UUIDs with commas between them: only these GPUs, in NVML's order all
// the same. UNAVAILABLE if it names one that is not there.
Result<NvmlTopology> BuildNvmlTopology(NvmlApi& nvml,
                                       const std::optional<std::string>& visible = std::nullopt);

}  // namespace tandem
