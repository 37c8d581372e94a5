#include <string>
#include <string_view>

#include "common/toml/toml_text.h"
#include "daemon/topology/topology_file.h"

namespace tandem {
namespace {

// "name = [\n  [a, b],\n  [c, d],\n]\n", with `cell(i, j)` for the elements.
template <typename Cell>
std::string Matrix(std::string_view name, int size, Cell cell) {
  std::string out = std::string(name) + " = [\n";
  for (int i = 0; i < size; ++i) {
    out += "  [";
    for (int j = 0; j < size; ++j) out += (j == 0 ? "" : ", ") + cell(i, j);
    out += "],\n";
  }
  return out + "]\n";
}

std::string PrintGpu(const GpuInfo& gpu) {
  std::string out = "\n[[gpus]]\n";
  out += "uuid = " + QuoteToml(gpu.uuid) + "\n";
  if (!gpu.model.empty()) out += "model = " + QuoteToml(gpu.model) + "\n";
  if (!gpu.pci_bus_id.empty()) out += "pci_bus_id = " + QuoteToml(gpu.pci_bus_id) + "\n";
  out += "numa_node = " + std::to_string(gpu.numa_node) + "\n";
  if (gpu.memory_bytes != 0) out += "memory_bytes = " + std::to_string(gpu.memory_bytes) + "\n";
  out += "mig_enabled = " + std::string(gpu.mig_enabled ? "true" : "false") + "\n";
  out += "compute_mode = " + QuoteToml(ComputeModeName(gpu.compute_mode)) + "\n";
  if (!gpu.fabric_state.empty()) out += "fabric_state = " + QuoteToml(gpu.fabric_state) + "\n";
  out += "switch_links = " + std::to_string(gpu.switch_links) + "\n";
  return out;
}

}  // namespace

std::string WriteTopology(const Topology& topology) {
  int size = topology.size();
  std::string out =
      Matrix("nvlinks", size, [&](int i, int j) { return std::to_string(topology.nvlinks[i][j]); });
  out += Matrix("pcie", size, [&](int i, int j) { return QuoteToml(PcieDistanceName(topology.pcie[i][j])); });
  std::string failures;
  for (int i = 0; i < size; ++i) {
    for (int j = i + 1; j < size; ++j) {
      if (topology.HasPeerAccess(i, j)) continue;
      failures += (failures.empty() ? "[" : ", [") + std::to_string(i) + ", " + std::to_string(j) + "]";
    }
  }
  out += "p2p_failures = [" + failures + "]\n";
  for (const GpuInfo& gpu : topology.gpus) out += PrintGpu(gpu);
  return out;
}

}  // namespace tandem
