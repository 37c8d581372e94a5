#include "daemon/topology/topology_text.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tandem {
namespace {

// NVLinks as they are plugged, whether peer access works or not.
int PhysicalLinks(const Topology& topology, int i, int j) {
  return topology.nvlinks[i][j] + std::min(topology.gpus[i].switch_links, topology.gpus[j].switch_links);
}

std::string Mark(const Topology& topology, int i, int j) {
  if (i == j) return "X";
  int links = PhysicalLinks(topology, i, j);
  return links > 0 ? "NV" + std::to_string(links) : std::string(PcieDistanceName(topology.pcie[i][j]));
}

std::string Pad(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

// Rows of equal width columns; no trailing blanks.
std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += Pad(row[i], widths[i] + 2);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string Legend(const Topology& topology) {
  static const std::map<std::string, std::string> meanings = {
      {"PIX", "at most one PCIe switch"},      {"PXB", "several PCIe switches, no host bridge"},
      {"PHB", "a PCIe host bridge (the CPU)"}, {"NODE", "several host bridges of one NUMA node"},
      {"SYS", "the link between NUMA nodes"},
  };
  std::string out = "Legend:  X = self";
  bool nvlink = false;
  std::map<std::string, std::string> used;
  for (int i = 0; i < topology.size(); ++i) {
    for (int j = 0; j < i; ++j) {
      if (PhysicalLinks(topology, i, j) > 0) {
        nvlink = true;
        continue;
      }
      std::string mark(PcieDistanceName(topology.pcie[i][j]));
      if (auto meaning = meanings.find(mark); meaning != meanings.end()) used.insert(*meaning);
    }
  }
  if (nvlink) out += "; NV# = # NVLinks, direct or through NVSwitches";
  for (const auto& [mark, meaning] : used) out += "; " + mark + " = " + meaning;
  return out + "\n";
}

std::string Memory(uint64_t bytes) {
  if (bytes == 0) return "-";
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

std::string WithoutPeerAccess(const Topology& topology) {
  std::string pairs;
  for (int i = 0; i < topology.size(); ++i) {
    for (int j = i + 1; j < topology.size(); ++j) {
      if (topology.HasPeerAccess(i, j)) continue;
      pairs +=
          (pairs.empty() ? "" : ", ") + std::string("GPU") + std::to_string(i) + "-GPU" + std::to_string(j);
    }
  }
  return pairs.empty() ? "" : "No peer access: " + pairs + "\n";
}

}  // namespace

std::string LinkMatrix(const Topology& topology) {
  std::vector<std::vector<std::string>> rows(1, {""});
  for (int i = 0; i < topology.size(); ++i) rows[0].push_back("GPU" + std::to_string(i));
  rows[0].push_back("NUMA");
  for (int i = 0; i < topology.size(); ++i) {
    std::vector<std::string> row = {"GPU" + std::to_string(i)};
    for (int j = 0; j < topology.size(); ++j) row.push_back(i == j ? " X" : Mark(topology, i, j));
    int numa = topology.gpus[i].numa_node;
    row.push_back(numa < 0 ? "-" : std::to_string(numa));
    rows.push_back(std::move(row));
  }
  return Table(rows) + "\n" + Legend(topology);
}

std::string TopologyMatrix(const Topology& topology) {
  std::vector<std::vector<std::string>> gpus = {
      {"GPU", "UUID", "Model", "Bus", "Memory", "Compute mode", "MIG", "Fabric"}};
  for (int i = 0; i < topology.size(); ++i) {
    const GpuInfo& gpu = topology.gpus[i];
    gpus.push_back({std::to_string(i), gpu.uuid, gpu.model, gpu.pci_bus_id, Memory(gpu.memory_bytes),
                    std::string(ComputeModeName(gpu.compute_mode)), gpu.mig_enabled ? "on" : "off",
                    gpu.fabric_state.empty() ? "none" : gpu.fabric_state});
  }
  return LinkMatrix(topology) + "\n" + Table(gpus) + "\n" + WithoutPeerAccess(topology) +
         "Class: " + std::string(TopologyClassName(Classify(topology))) + " (from " + topology.source + ")\n";
}

std::string TopologyJson(const Topology& topology, int indent) {
  using nlohmann::json;
  json gpus = json::array();
  json nvlinks = json::array();
  json links = json::array();
  json pcie = json::array();
  json p2p = json::array();
  for (int i = 0; i < topology.size(); ++i) {
    const GpuInfo& gpu = topology.gpus[i];
    gpus.push_back({{"index", i},
                    {"uuid", gpu.uuid},
                    {"model", gpu.model},
                    {"pci_bus_id", gpu.pci_bus_id},
                    {"numa_node", gpu.numa_node},
                    {"memory_bytes", gpu.memory_bytes},
                    {"mig_enabled", gpu.mig_enabled},
                    {"compute_mode", ComputeModeName(gpu.compute_mode)},
                    {"fabric_state", gpu.fabric_state},
                    {"switch_links", gpu.switch_links}});
    json rows[4];
    for (json& row : rows) row = json::array();
    for (int j = 0; j < topology.size(); ++j) {
      rows[0].push_back(topology.nvlinks[i][j]);
      rows[1].push_back(topology.LinkCount(i, j));
      rows[2].push_back(PcieDistanceName(topology.pcie[i][j]));
      rows[3].push_back(topology.p2p[i][j]);
    }
    nvlinks.push_back(rows[0]);
    links.push_back(rows[1]);
    pcie.push_back(rows[2]);
    p2p.push_back(rows[3]);
  }
  json root = {{"source", topology.source},
               {"class", TopologyClassName(Classify(topology))},
               {"gpus", gpus},
               {"nvlinks", nvlinks},
               {"links", links},
               {"pcie", pcie},
               {"p2p", p2p}};
  return root.dump(indent, ' ', false, json::error_handler_t::replace);
}

}  // namespace tandem
