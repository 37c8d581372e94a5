// File: topology_text.h
//
// A topology for people (the matrix that `nvidia-smi topo -m` has made familiar) and for programs (JSON).
#pragma once

#include <string>

#include "daemon/topology/topology.h"

namespace tandem {

// The matrix: "NV18" for NVLinks, direct or through NVSwitches, else the PCIe distance. Below it: a legend of
// the marks, the GPUs' properties, pairs without peer access, and the class. Ends with a newline.
std::string TopologyMatrix(const Topology& topology);

// Only the matrix and its legend.
std::string LinkMatrix(const Topology& topology);

// {"source", "class", "gpus": [{"index", "uuid", "model", "pci_bus_id", "numa_node", "memory_bytes",
// "mig_enabled", "compute_mode", "fabric_state", "switch_links"}], "nvlinks", "links", "pcie", "p2p"} with n
// x n arrays; `links` is LinkCount. Bytes that are no UTF-8 are replaced. `indent` < 0: one line.
std::string TopologyJson(const Topology& topology, int indent = 2);

}  // namespace tandem
