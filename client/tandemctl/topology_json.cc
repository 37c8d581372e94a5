#include "client/tandemctl/topology_json.h"

#include <nlohmann/json.hpp>

#include "daemon/topology/topology_file.h"

namespace tandem::ctl {

Result<std::string> TopologyJson(const admin::v1::GetTopologyReply& reply) {
  using nlohmann::ordered_json;
  TANDEM_ASSIGN_OR_RETURN(const Topology topology, ParseTopology(reply.topology_toml(), "topology"));
  ordered_json json{{"topology_class", reply.topology_class()},
                    {"gpus", ordered_json::array()},
                    {"links", ordered_json::array()},
                    {"pcie", ordered_json::array()},
                    {"peer_access", ordered_json::array()}};
  for (int i = 0; i < topology.size(); ++i) {
    const GpuInfo& gpu = topology.gpus[static_cast<size_t>(i)];
    json["gpus"].push_back({{"index", i},
                            {"uuid", gpu.uuid},
                            {"model", gpu.model},
                            {"pci_bus_id", gpu.pci_bus_id},
                            {"numa_node", gpu.numa_node < 0 ? ordered_json() : ordered_json(gpu.numa_node)},
                            {"memory_bytes", gpu.memory_bytes},
                            {"mig", gpu.mig_enabled},
                            {"fabric_state", gpu.fabric_state},
                            {"switch_links", gpu.switch_links}});
    ordered_json links = ordered_json::array(), pcie = ordered_json::array(), peers = ordered_json::array();
    for (int j = 0; j < topology.size(); ++j) {
      links.push_back(i == j ? 0 : topology.LinkCount(i, j));
      pcie.push_back(i == j ? "X" : std::string(PcieDistanceName(topology.pcie[i][j])));
      peers.push_back(i == j || topology.HasPeerAccess(i, j));
    }
    json["links"].push_back(std::move(links));
    json["pcie"].push_back(std::move(pcie));
    json["peer_access"].push_back(std::move(peers));
  }
  return json.dump(1, ' ', true, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::ctl
