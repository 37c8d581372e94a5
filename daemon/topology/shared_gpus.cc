#include "daemon/topology/shared_gpus.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "common/gpu_name.h"

namespace tandem {

Result<Topology> ShareGpus(const Topology& topology, int engines) {
  const int devices = topology.size(), gpus = devices * engines;
  if (engines < 1 || gpus > kMaxGpus) {
    return InvalidArgument(std::to_string(engines) + " engines on each of " + std::to_string(devices) +
                           " GPUs: at most " + std::to_string(kMaxGpus) + " in all");
  }
  if (engines == 1) return topology;
  Topology shared;
  shared.source = topology.source + ", " + std::to_string(engines) + " engines a GPU";
  for (int i = 0; i < gpus; ++i) {
    const int device = i % devices;
    GpuInfo gpu = topology.gpus[static_cast<size_t>(device)];
    gpu.uuid = SharedGpuName(gpu.uuid, i / devices);
    gpu.model += " (one of " + std::to_string(engines) + " shares)";
    gpu.memory_bytes /= static_cast<uint64_t>(engines);
    shared.gpus.push_back(std::move(gpu));
    for (int j = 0; j < gpus; ++j) {
      if (i == j) continue;
      const int other = j % devices;
      const bool same = device == other;
      shared.p2p[i][j] = same || topology.p2p[device][other];
      shared.pcie[i][j] = same ? PcieDistance::kPix : topology.pcie[device][other];
      // Through switches a pair is linked by the links of both ends, which shares have as well.
      const bool switched = topology.gpus[static_cast<size_t>(device)].switch_links > 0;
      shared.nvlinks[i][j] = same ? (switched ? 0 : 1) : topology.nvlinks[device][other];
    }
  }
  return shared;
}

bool SharesDevice(const Topology& topology) {
  std::vector<std::string_view> devices;
  for (const GpuInfo& gpu : topology.gpus) devices.push_back(DeviceUuid(gpu.uuid));
  std::sort(devices.begin(), devices.end());
  return std::adjacent_find(devices.begin(), devices.end()) != devices.end();
}

}  // namespace tandem
