// File: topology.h
//
// `Topology`: what is known of a node's GPUs and the links among them, and the classes that algorithms are
// chosen by. Sources: NVML on the machine (nvml_topology.h), a TOML file (topology_file.h), or
// EmulatedTopology for the host backend. Plain values: every function here is pure and safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/status.h"

namespace tandem {

inline constexpr int kMaxGpus = 8;

enum class TopologyClass : uint8_t {
  kSingle = 0,          // one GPU (or none)
  kNvSwitch = 1,        // every GPU reaches every other through NVSwitches
  kFullMesh = 2,        // every pair has direct NVLinks
  kHybridCubeMesh = 3,  // DGX-1: two fully linked quads, each GPU linked to its mate in the other
  kPairs = 4,           // NVLink bridges between disjoint pairs
  kPcieOnly = 5,
  kIrregular = 6,  // some NVLinks, no known shape
};
// "single", "nvswitch", "full_mesh", "hybrid_cube_mesh", "pairs", "pcie_only", "irregular".
std::string_view TopologyClassName(TopologyClass topology_class);

// How far two GPUs are apart on PCIe; names as people know them: "PIX", "PXB", "PHB", "NODE", "SYS".
enum class PcieDistance : uint8_t { kSame = 0, kPix = 1, kPxb = 2, kPhb = 3, kNode = 4, kSys = 5 };
std::string_view PcieDistanceName(PcieDistance distance);

enum class ComputeMode : uint8_t { kDefault = 0, kExclusiveProcess = 1, kProhibited = 2 };
// "default", "exclusive_process", "prohibited".
std::string_view ComputeModeName(ComputeMode mode);

struct GpuInfo {
  std::string uuid;  // the GPU's name everywhere; never its ordinal
  std::string model;
  std::string pci_bus_id;
  int numa_node = -1;
  uint64_t memory_bytes = 0;
  bool mig_enabled = false;
  ComputeMode compute_mode = ComputeMode::kDefault;
  std::string fabric_state;  // of NVSwitches: "none", "not_started", "in_progress", "completed", "error: …"
  int switch_links = 0;      // NVLinks of this GPU that end at NVSwitches
};

// Links among up to kMaxGpus GPUs; indexes are positions in `gpus`.
struct Topology {
  std::string source;  // "nvml", "emulated", or the file's path
  std::vector<GpuInfo> gpus;
  // Direct NVLinks between i and j; symmetric, 0 on the diagonal.
  std::array<std::array<int, kMaxGpus>, kMaxGpus> nvlinks{};
  std::array<std::array<PcieDistance, kMaxGpus>, kMaxGpus> pcie{};
  // Peer access between i and j is reported, and has not failed a probe with data.
  std::array<std::array<bool, kMaxGpus>, kMaxGpus> p2p{};

  int size() const { return static_cast<int>(gpus.size()); }
  // Whether i and j, another one, may reach each other's memory: both ways, or nobody uses the pair.
  bool HasPeerAccess(int i, int j) const { return i != j && p2p[i][j] && p2p[j][i]; }
  // Links over which i and j can communicate: direct ones plus min(switch links of i, of j). 0 means PCIe, or
  // a pair without peer access (`p2p` false), whose links nobody may use.
  int LinkCount(int i, int j) const;
  // The position of the GPU with this UUID; NOT_FOUND lists the known ones.
  Result<int> Find(std::string_view uuid) const;
};

// The topology of the GPUs at `members` (positions, distinct, valid), in that order: position k of the result
// is members[k].
Topology Subset(const Topology& topology, std::span<const int> members);

// `gpus` emulated GPUs (1 to kMaxGpus) for the host backend: all linked to NVSwitches, peer access
// everywhere, UUIDs "EMU-0000-0000", "EMU-0000-0001", …, `memory_bytes` each; `source` is "emulated".
Topology EmulatedTopology(int gpus, uint64_t memory_bytes = uint64_t{2} << 30);

// Classifies all GPUs of `topology` on their own links (call it with a Subset for a group). A link of a pair
// without peer access counts for nothing.
TopologyClass Classify(const Topology& topology);

// For kHybridCubeMesh: mate[i] is the GPU of the other quad that i is linked to. quad[i] has the three other
// GPUs of i's quad, with quad[i][k] = j if and only if quad[j][k] = i. These are three perfect matchings: at
// step k each link of the matching is busy both ways. The matchings are deterministic. GPUs of a quad,
// ascending, have local indexes q = 0..3, and quad[i][k] has local index q xor (k + 1). FAILED_PRECONDITION
// for other classes.
struct HybridCubeMesh {
  std::array<int, kMaxGpus> mate{};
  std::array<std::array<int, 3>, kMaxGpus> quad{};
};
Result<HybridCubeMesh> FindHybridCubeMesh(const Topology& topology);

}  // namespace tandem
