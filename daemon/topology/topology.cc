#include "daemon/topology/topology.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdio>
#include <optional>

namespace tandem {
namespace {

constexpr std::array<std::string_view, 7> kClassNames = {
    "single", "nvswitch", "full_mesh", "hybrid_cube_mesh", "pairs", "pcie_only", "irregular"};
constexpr std::array<std::string_view, 6> kDistanceNames = {"X", "PIX", "PXB", "PHB", "NODE", "SYS"};
constexpr std::array<std::string_view, 3> kComputeModeNames = {"default", "exclusive_process", "prohibited"};

bool HasDirectLink(const Topology& topology, int i, int j) {
  return topology.HasPeerAccess(i, j) && topology.nvlinks[i][j] > 0;
}

bool HasSwitchLink(const Topology& topology, int i, int j) {
  return topology.HasPeerAccess(i, j) && topology.gpus[i].switch_links > 0 &&
         topology.gpus[j].switch_links > 0;
}

// The GPUs with a direct link to each GPU, one bit each.
using Neighbours = std::array<uint32_t, kMaxGpus>;

Neighbours DirectNeighbours(const Topology& topology) {
  Neighbours neighbours{};
  for (int i = 0; i < topology.size(); ++i) {
    for (int j = 0; j < topology.size(); ++j) {
      if (HasDirectLink(topology, i, j)) neighbours[i] |= 1u << j;
    }
  }
  return neighbours;
}

// A hybrid cube mesh is two complete graphs of four joined by a perfect matching. So every GPU has four
// neighbours, and shares none of them with exactly one: its mate; taking the mates away must leave two closed
// quads. Source: the test of PyTorch's IntraNodeComm (pull request 114001), which the check of the quads
// makes exact.
std::optional<HybridCubeMesh> DetectHybridCubeMesh(const Topology& topology) {
  if (topology.size() != 8) return std::nullopt;
  Neighbours neighbours = DirectNeighbours(topology);
  HybridCubeMesh mesh;
  std::array<uint32_t, kMaxGpus> quad_of{};  // with the GPU itself
  for (int i = 0; i < 8; ++i) {
    if (std::popcount(neighbours[i]) != 4) return std::nullopt;
    int mates = 0;
    for (int j = 0; j < 8; ++j) {
      if ((neighbours[i] >> j & 1) == 0 || (neighbours[i] & neighbours[j]) != 0) continue;
      mesh.mate[i] = j;
      ++mates;
    }
    if (mates != 1) return std::nullopt;
    quad_of[i] = (neighbours[i] | 1u << i) & ~(1u << mesh.mate[i]);
  }
  for (int i = 0; i < 8; ++i) {
    if (mesh.mate[mesh.mate[i]] != i) return std::nullopt;
    std::array<int, 4> members{};
    int count = 0;
    int local = 0;
    for (int j = 0; j < 8; ++j) {
      if ((quad_of[i] >> j & 1) == 0) continue;
      if (quad_of[j] != quad_of[i]) return std::nullopt;
      if (j == i) local = count;
      members[count++] = j;
    }
    for (int k = 0; k < 3; ++k) mesh.quad[i][k] = members[local ^ (k + 1)];
  }
  return mesh;
}

}  // namespace

std::string_view TopologyClassName(TopologyClass topology_class) {
  auto index = static_cast<size_t>(topology_class);
  return index < kClassNames.size() ? kClassNames[index] : "invalid";
}

std::string_view PcieDistanceName(PcieDistance distance) {
  auto index = static_cast<size_t>(distance);
  return index < kDistanceNames.size() ? kDistanceNames[index] : "invalid";
}

std::string_view ComputeModeName(ComputeMode mode) {
  auto index = static_cast<size_t>(mode);
  return index < kComputeModeNames.size() ? kComputeModeNames[index] : "invalid";
}

int Topology::LinkCount(int i, int j) const {
  if (!HasPeerAccess(i, j)) return 0;
  return nvlinks[i][j] + std::min(gpus[i].switch_links, gpus[j].switch_links);
}

Result<int> Topology::Find(std::string_view uuid) const {
  std::string known;
  for (int i = 0; i < size(); ++i) {
    if (gpus[i].uuid == uuid) return i;
    known += (known.empty() ? "" : ", ") + gpus[i].uuid;
  }
  return NotFound("no GPU has the UUID '" + std::string(uuid) + "'; this node has " +
                  (known.empty() ? std::string("none") : known));
}

Topology Subset(const Topology& topology, std::span<const int> members) {
  assert(members.size() <= kMaxGpus);
  Topology subset;
  subset.source = topology.source;
  for (size_t i = 0; i < members.size(); ++i) {
    assert(members[i] >= 0 && members[i] < topology.size());
    subset.gpus.push_back(topology.gpus[members[i]]);
    for (size_t j = 0; j < members.size(); ++j) {
      assert(i == j || members[i] != members[j]);
      subset.nvlinks[i][j] = topology.nvlinks[members[i]][members[j]];
      subset.pcie[i][j] = topology.pcie[members[i]][members[j]];
      subset.p2p[i][j] = topology.p2p[members[i]][members[j]];
    }
  }
  return subset;
}

Topology EmulatedTopology(int gpus, uint64_t memory_bytes) {
  assert(gpus >= 1 && gpus <= kMaxGpus);
  Topology topology;
  topology.source = "emulated";
  for (int i = 0; i < gpus; ++i) {
    char uuid[32];
    std::snprintf(uuid, sizeof(uuid), "EMU-0000-%04d", i);
    char bus_id[32];
    std::snprintf(bus_id, sizeof(bus_id), "ffff:%02x:00.0", i + 1);  // a PCI domain that no machine has
    GpuInfo gpu;
    gpu.uuid = uuid;
    gpu.model = "Tandem emulated GPU";
    gpu.pci_bus_id = bus_id;
    gpu.numa_node = 0;
    gpu.memory_bytes = memory_bytes;
    gpu.fabric_state = "completed";
    gpu.switch_links = 18;
    topology.gpus.push_back(gpu);
    for (int j = 0; j < gpus; ++j) {
      topology.pcie[i][j] = i == j ? PcieDistance::kSame : PcieDistance::kNode;
      topology.p2p[i][j] = i != j;
    }
  }
  return topology;
}

TopologyClass Classify(const Topology& topology) {
  int count = topology.size();
  if (count <= 1) return TopologyClass::kSingle;
  bool all_switch = true;
  bool all_direct = true;
  bool any = false;
  int most_partners = 0;
  for (int i = 0; i < count; ++i) {
    int partners = 0;
    for (int j = 0; j < count; ++j) {
      if (i == j) continue;
      bool by_switch = HasSwitchLink(topology, i, j);
      bool direct = HasDirectLink(topology, i, j);
      all_switch &= by_switch;
      all_direct &= direct;
      if (by_switch || direct) ++partners;
    }
    any |= partners > 0;
    most_partners = std::max(most_partners, partners);
  }
  if (all_switch) return TopologyClass::kNvSwitch;
  if (all_direct) return TopologyClass::kFullMesh;
  if (!any) return TopologyClass::kPcieOnly;
  // One partner at most: bridges between pairs, and perhaps GPUs without one (half of a pair is in another
  // group).
  if (most_partners == 1) return TopologyClass::kPairs;
  if (DetectHybridCubeMesh(topology).has_value()) return TopologyClass::kHybridCubeMesh;
  return TopologyClass::kIrregular;
}

Result<HybridCubeMesh> FindHybridCubeMesh(const Topology& topology) {
  TopologyClass found = Classify(topology);
  if (found != TopologyClass::kHybridCubeMesh) {
    return FailedPrecondition("needs a hybrid cube mesh of 8 GPUs; this topology of " +
                              std::to_string(topology.size()) + " is " +
                              std::string(TopologyClassName(found)));
  }
  return *DetectHybridCubeMesh(topology);
}

}  // namespace tandem
