// File: topology_json.h
//
// `tandemctl topo --json`.
#pragma once

#include <string>

#include "tandem/admin/v1/admin.pb.h"
#include "tandem/status.h"

namespace tandem::ctl {

// The GPUs and the matrices of their links. The fields are "topology_class", "source", "gpus" (each {"index",
// "uuid", …}), "links", "pcie" and "peer_access". "links" counts NVLinks between two GPUs, through switches
// too. "pcie" has the distances' names, "X" for a GPU and itself. An error if tandemd's answer is no
// topology.
Result<std::string> TopologyJson(const admin::v1::GetTopologyReply& reply);

}  // namespace tandem::ctl
